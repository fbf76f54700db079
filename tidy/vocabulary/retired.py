import sys,re; sys.path.insert(0,__import__('os').path.dirname(__import__('os').path.abspath(__file__)))
from engine import *
import os
src=open(os.path.join(os.path.dirname(os.path.abspath(__file__)),'extra/vocabulary.rs.txt')).read()
words=re.findall(r'\("(\w+)", "',src)
w=World(sys.argv[1])
import collections
o=collections.defaultdict(lambda: collections.Counter())
for f in w.files:
    if '/tidy/' in f.path: continue
    for t in f.code:
        if t.k=='id' and t.t in words: o[t.t][f.path]+=1
for k in o: print(k, dict(o[k].most_common(8)))
for p,sc in w.scopes.items():
    for n,k in sc.defs.items():
        if k=='mod' and (n.endswith('ing') or n.endswith('ed')): print('mod','::'.join(p),n)
