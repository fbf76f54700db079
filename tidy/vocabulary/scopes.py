import sys; sys.path.insert(0,__import__('os').path.dirname(__import__('os').path.abspath(__file__)))
from engine import *; from tokens import TOKENS
w=World(sys.argv[1])
occ={}
for f in w.files:
    c=f.code
    for i,t in enumerate(c):
        if t.k=='id':
            prev=c[i-1].t if i else ''; nxt=c[i+1].t if i+1<len(c) else ''
            kind = 'def' if prev=='fn' or (nxt==':' and prev in ('pub',')','{',',',']') and (i+2<len(c)) and prev in('pub',')')) else ('dot' if prev=='.' else ('path' if prev=='::' else 'other'))
            occ.setdefault(t.t,[]).append((f.path,kind,prev,nxt))
scopes={}
for globs,mode,table in TOKENS:
    for o in table: scopes.setdefault(o,[]).append((globs,mode))
for o,ss in scopes.items():
    inn=[x for x in occ.get(o,[]) if any(matches(x[0],g) for g,_ in ss)]
    out=[x for x in occ.get(o,[]) if not any(matches(x[0],g) for g,_ in ss)]
    crates={x[0].split('/')[1] for x in inn}
    # outside definitions
    od=sorted({x[0][7:] for x in out if x[1]=='def'})
    ou=sorted({x[0][7:] for x in out if x[1] in('dot','path')})
    idf=sorted({x[0][7:] for x in inn if x[1]=='def'})
    if (od or ou):
        print(f"{o} ({','.join(m for _,m in ss)}) in:{len(inn)} def-in:{idf[:4]} | OUT def:{od[:5]} use:{ou[:8]}")
