import sys,collections; sys.path.insert(0,__import__('os').path.dirname(__import__('os').path.abspath(__file__)))
from engine import *
def scan(tree):
    w=World(tree); defs=set(); uses=collections.defaultdict(set); structs={}
    for f in w.files:
        c=f.code; n=len(c)
        for i,t in enumerate(c):
            if t.k!='id': continue
            prev=c[i-1].t if i else ''; nxt=c[i+1].t if i+1<n else ''
            if prev=='fn': defs.add(t.t)
            elif nxt==':' and prev in ('pub',')','{',',',']'): defs.add(t.t)
            elif prev=='.': uses[t.t].add(f.path)
            # struct defs
            if prev in('struct',) and t.scope is not None:
                j=i+1; ang=0
                while j<n and (c[j].t!='{' or ang) and c[j].t not in(';','('):
                    if c[j].t=='<': ang+=1
                    if c[j].t=='>': ang-=1
                    j+=1
                if j<n and c[j].t=='{':
                    structs[t.scope.path+(t.t,)]=fields(c,j)
            if t.variant is not None and nxt=='{':
                structs[t.variant+(t.t,)]=fields(c,i+1)
    return w,defs,uses,structs
def fields(c,j):
    out=set(); d=0; k=j; 
    while k<len(c):
        x=c[k].t
        if x in '{([' and len(x)==1: d+=1
        elif x in '})]' and len(x)==1:
            d-=1
            if d==0: break
        elif d==1 and c[k].k=='id' and c[k+1].t==':' : out.add(x)
        k+=1
    return out
wb,db,ub,sb=scan(sys.argv[1]); wn,dn,un,sn=scan(sys.argv[2])
for name in sorted(un):
    if name in db and name not in dn: print('GONE def but used:',name,sorted(un[name])[:4])
    if name not in ub and name not in dn: print('NEW use without def:',name,sorted(un[name])[:4])
# literals
for f in wn.files:
    c=f.code; n=len(c)
    for i,t in enumerate(c):
        if t.k!='id' or t.variant is not None or i+1>=n or c[i+1].t!='{' or t.scope is None or not t.t[0].isupper(): continue
        if c[i-1].t in('struct','enum','trait','union','impl','for','mod','->','dyn','::<') : continue
        segs=[t.t]; k=i
        while k>=2 and c[k-1].t=='::' and c[k-2].k=='id': segs.insert(0,c[k-2].t); k-=2
        if k>=1 and c[k-1].t in('struct','enum','trait','impl','for','->'): continue
        p=wn.resolve(t.scope,segs,t.self)
        if p not in sn: continue
        # names at depth 1
        d=0;j=i+1;names=[];start=True
        while j<n:
            x=c[j].t
            if x in('{','(','['): d+=1
            elif x in('}',')',']'):
                d-=1
                if d==0: break
            elif d==1 and c[j].k=='id':
                pv=c[j-1].t
                if pv in('{',',') or (pv in('ref','mut') and c[j-2].t in('{',',','ref')) or pv==']':
                    if x not in('ref','mut'): names.append(x)
            j+=1
        bad=[x for x in names if x not in sn[p]]
        if bad: print('LITERAL',f.path,'::'.join(p),bad)
