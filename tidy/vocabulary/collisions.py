import sys; sys.path.insert(0,__import__('os').path.dirname(__import__('os').path.abspath(__file__)))
from engine import *; from tokens import TOKENS
w=World(sys.argv[1])
allold={o for _,_,t in TOKENS for o in t}
for globs,mode,table in TOKENS:
    fs=[f for f in w.files if matches(f.path,globs)]
    for o,n in table.items():
        both=[]
        for f in fs:
            ids={t.t for t in f.code if t.k=='id'}
            if o in ids and n in ids: both.append(f.path[7:])
        if both: print(mode,o,'->',n,both)
