import sys; sys.path.insert(0,__import__('os').path.dirname(__import__('os').path.abspath(__file__)))
from engine import *
def scan(tree):
    w=World(tree); out={}
    for f in w.files:
        c=f.code;n=len(c);i=0
        while i<n:
            t=c[i]
            if t.k!='id' or t.scope is None: i+=1; continue
            ch=[t.t];j=i
            while j+2<n and c[j+1].t=='::' and c[j+2].k=='id': ch.append(c[j+2].t); j+=2
            prev=c[i-1].t if i else ''
            if prev not in('.','::') and (len(ch)>1):
                ps=w.prefixes(t.scope,ch,t.self)
                if ps[0] is not None and ps[-1] is None: out.setdefault('::'.join(ch),f.path)
            i=j+1
        # single CamelCase idents unresolved
        for i,t in enumerate(c):
            if t.k=='id' and t.t[0].isupper() and t.scope is not None and (i==0 or c[i-1].t not in('.','::')) and t.variant is None:
                if w.lookup(t.scope,t.t) is None: out.setdefault('1:'+f.path.split('/')[1]+':'+t.t,f.path)
    return out
b=scan(sys.argv[1]); n=scan(sys.argv[2])
for k in sorted(n):
    if k not in b: print(k,n[k])
