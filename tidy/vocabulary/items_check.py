import sys; sys.path.insert(0,__import__('os').path.dirname(__import__('os').path.abspath(__file__)))
from engine import *; from items import items
w=World(sys.argv[1]); T=items()
for p,n in T.items():
    sc=w.scopes.get(p[:-1])
    known = (sc and p[-1] in sc.defs) or (p[:-1] in w.enums and p[-1] in w.enums[p[:-1]])
    if not known: print('UNKNOWN','::'.join(p), [k for k in (sc.defs if sc else [])][:40])
    if sc and (n in sc.defs or n in sc.uses) and (p[:-1]+(n,)) not in T: print('CLASH in definition scope','::'.join(p),n, sc.uses.get(n))
    if p[:-1]+(n,) in T: print('CHAIN', p, n)
# clash in scopes that use
byname={}
for p,n in T.items(): byname.setdefault(p[-1],[]).append((p,n))
for path,sc in w.scopes.items():
    for name in list(sc.uses)+list(sc.defs):
        if name in byname:
            r=w.lookup(sc,name)
            if r in T:
                n=T[r]
                if r[-1]==name and (n in sc.uses or n in sc.defs):
                    other=w.lookup(sc,n)
                    if other is None or other not in T: print('CLASH','::'.join(path),'::'.join(r),'->',n,'with',sc.uses.get(n) or sc.defs.get(n))
                for name2 in list(sc.uses)+list(sc.defs):
                    if name2>name:
                        r2=w.lookup(sc,name2)
                        if r2 in T and T[r2]==n and r2!=r and r2[-1]==name2 : print('TWO','::'.join(path),r,r2,n)
