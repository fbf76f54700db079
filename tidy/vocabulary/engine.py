"""A small name resolver for this workspace: finds every use of a module-level item and renames it."""
import os, re, glob, subprocess, fnmatch, sys

TOKEN = re.compile(r'''
 (?P<doc>//[^\n]*)
|(?P<block>/\*(?:[^*]|\*(?!/))*\*/)
|(?P<raw>b?r(?P<h>\#*)"(?:.|\n)*?"(?P=h))
|(?P<str>b?c?"(?:\\(?:.|\n)|[^"\\])*")
|(?P<chr>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[0-9a-fA-F_]+\}|.)|[^'\\\n])')
|(?P<life>'[A-Za-z_]\w*)
|(?P<id>r\#[A-Za-z_]\w*|[A-Za-z_]\w*)
|(?P<num>\d[\w]*(?:\.\d[\w]*)?)
|(?P<op>::|->|=>|\.\.=|\.\.\.|\.\.|.)
|(?P<ws>\s+)
''', re.X)

def matches(path, globs):
    if any(g[0] == '!' and fnmatch.fnmatch(path, g[1:]) for g in globs): return False
    return any(fnmatch.fnmatch(path, g) for g in globs if g[0] != '!')

def receiver(c, i):
    """The identifier that a `.name` at token i is a field or method of: `leaf.x`, `self.leaf(&y).x`."""
    k = i - 2
    if k >= 0 and c[k].t == ')':
        depth = 0
        while k >= 0:
            if c[k].t == ')': depth += 1
            elif c[k].t == '(':
                depth -= 1
                if depth == 0: break
            k -= 1
        k -= 1
    return c[k].t if k >= 0 and c[k].k == 'id' else ''

class Tok:
    __slots__ = ('k', 't', 's', 'e', 'scope', 'self', 'variant', 'new')
    def __init__(self, k, t, s, e):
        self.k, self.t, self.s, self.e = k, t, s, e
        self.scope = None; self.self = None; self.variant = None; self.new = None

def tokenize(text):
    out, pos = [], 0
    while pos < len(text):
        m = TOKEN.match(text, pos)
        if not m: pos += 1; continue
        k = m.lastgroup
        if k == 'h': k = 'raw'
        if m.group('raw') is not None: k = 'raw'
        if not (k == 'op' and m.group().isspace()) and k != 'ws':
            out.append(Tok(k, m.group(), m.start(), m.end()))
        pos = m.end()
    return out

class Scope:
    def __init__(self, path):
        self.path, self.defs, self.uses, self.globs = path, {}, {}, []

class File:
    def __init__(self, path, text):
        self.path, self.text = path, text
        self.toks = tokenize(text)
        self.code = [t for t in self.toks if t.k not in ('doc', 'block')]

class World:
    def __init__(self, tree):
        self.tree = tree
        self.scopes, self.enums, self.files, self.crates = {}, {}, [], set()
        self.used_rules = set()
        self.drop = set()
        for d in sorted(glob.glob(tree + '/crates/*/Cargo.toml')):
            self.crates.add(os.path.basename(os.path.dirname(d)))
        for p in sorted(glob.glob(tree + '/crates/**/*.rs', recursive=True)) + sorted(glob.glob(tree + '/fuzz/**/*.rs', recursive=True)):
            rel = os.path.relpath(p, tree)
            if '/proto/' in rel or rel.startswith('fuzz/target/'): continue
            self.load(rel)

    def module_of(self, rel):
        parts = rel.split('/')
        if parts[0] == 'fuzz': return ('fuzz#' + parts[-1][:-3],)
        c, rest = parts[1], parts[2:]
        stem = rest[-1][:-3]
        if rest[0] == 'src':
            if len(rest) > 2 and rest[1] == 'bin': return (c + '#' + stem,) + tuple()
            if rest[1:] == ['main.rs']:
                return (c + '#main',) if os.path.exists(f'{self.tree}/crates/{c}/src/lib.rs') else (c,)
            mods = rest[1:-1] + ([] if stem in ('mod', 'lib') else [stem])
            return (c,) + tuple(mods)
        if rest[0] in ('tests', 'benches', 'examples'):
            if len(rest) == 2: return (c + '#' + stem,)
            mods = rest[2:-1] + ([] if stem in ('mod', 'main') else [stem])
            return (c + '#' + rest[1],) + tuple(mods)
        return (c + '#' + '/'.join(rest),)

    def scope(self, path):
        if path not in self.scopes: self.scopes[path] = Scope(path)
        return self.scopes[path]

    def load(self, rel):
        text = open(os.path.join(self.tree, rel), encoding='utf-8').read()
        f = File(rel, text); f.module = self.module_of(rel)
        self.files.append(f)
        base = self.scope(f.module)
        c = f.code; n = len(c); i = 0
        stack = [('mod', base, None)]
        pend = None
        def cur():
            sc, st = None, None
            for kind, s, x in reversed(stack):
                if kind == 'impl' and st is None: st = x
                if kind == 'enum' and st is None: st = [x[-1]]
                if kind == 'mod': sc = s; break
            return sc, st
        depth_paren = 0
        derive = set()
        for k, tok in enumerate(c):
            if tok.t == 'derive' and k + 1 < n and c[k+1].t == '(':
                q = k + 2
                while q < n and c[q].t != ')': derive.add(id(c[q])); q += 1
        f.derive = derive
        while i < n:
            t = c[i]
            sc, st = cur()
            t.scope, t.self = sc, st
            top = stack[-1][0]
            prev = c[i-1].t if i else ''
            if t.k == 'op':
                if t.t == '{':
                    stack.append(pend or ('brace', None, None)); pend = None
                elif t.t == '}':
                    if len(stack) > 1: stack.pop()
                elif t.t == '[' and top == 'enum': stack.append(('sq', None, None))
                elif t.t == ']' and top == 'sq': stack.pop()
                elif t.t == '(' and top == 'enum': stack.append(('par', None, None))
                elif t.t == '(' and top == 'par': stack.append(('par', None, None))
                elif t.t == ')' and top == 'par': stack.pop()
                elif t.t == ';' and pend: pend = None
                i += 1; continue
            if t.k != 'id': i += 1; continue
            if top == 'enum' and prev in ('{', ',', ']') :
                t.variant = stack[-1][2]
                self.enums.setdefault(stack[-1][2], set()).add(t.t)
                i += 1; continue
            w = t.t
            nxt = c[i+1] if i + 1 < n else None
            if w == 'use' and nxt is not None and prev in ('', ';', '}', '{', ']', 'pub', ')'):
                j = i + 1
                end = j
                while end < n and c[end].t != ';': c[end].scope, c[end].self = sc, st; end += 1
                self.parse_use(f, sc, j, end)
                i = end; continue
            if top == 'mod' or w == 'impl':
                if w == 'mod' and nxt.k == 'id':
                    sc.defs[nxt.t] = 'mod'; self.scope(sc.path + (nxt.t,))
                    nxt.scope, nxt.self = sc, st
                    if i + 2 < n and c[i+2].t == '{': pend = ('mod', self.scope(sc.path + (nxt.t,)), None)
                    i += 2; continue
                if w in ('struct', 'enum', 'trait', 'union', 'type', 'fn', 'const', 'static') and nxt is not None and nxt.k == 'id' and nxt.t not in ('fn', 'unsafe', 'extern', 'async', 'mut'):
                    if w != 'union' or (i + 2 < n and c[i+2].t in ('{', '<')):
                        sc.defs[nxt.t] = w
                        if w == 'enum': pend = ('enum', sc, sc.path + (nxt.t,))
                        elif w == 'trait': pend = ('impl', None, [nxt.t])
                        nxt.scope, nxt.self = sc, st
                        i += 2; continue
                if w == 'macro_rules' and i + 2 < n: sc.defs[c[i+2].t] = 'macro'
                if w == 'impl' and (top == 'mod' or prev in (';', '}', '{', ']')):
                    j, angle, segs, last = i + 1, 0, [], []
                    while j < n and c[j].t not in ('{', ';'):
                        x = c[j].t
                        if x == '<': angle += 1
                        elif x == '>': angle -= 1
                        elif angle == 0:
                            if x == 'for': segs = []
                            elif x == 'where': break
                            elif c[j].k == 'id' and x not in ('dyn', 'mut', 'unsafe', 'const'):
                                if c[j-1].t == '::': segs.append(x)
                                else: segs = [x]
                        j += 1
                    pend = ('impl', None, segs)
            i += 1
        # comments take the scope of the next code token
        nexts = iter(c)
        it = 0
        for t in f.toks:
            if t.k in ('doc', 'block'):
                while it < len(c) and c[it].s < t.s: it += 1
                ref = c[it] if it < len(c) else None
                t.scope = ref.scope if ref is not None and ref.scope else base
                t.self = ref.self if ref is not None else None
                if t.t.startswith('//!'):
                    p = c[it-1] if it else None
                    t.scope = p.scope if p is not None and p.scope else base

    def parse_use(self, f, sc, j, end):
        """Registers each leaf; remembers the token lists for renaming."""
        c = f.code
        leaves = []
        def tree(k, prefix):
            segs = list(prefix)
            while k < end:
                t = c[k]
                if t.k == 'id':
                    if t.t == 'as':
                        alias = c[k+1].t
                        leaves.append((segs, alias)); return k + 2
                    segs.append(t)
                    k += 1
                elif t.t == '::': k += 1
                elif t.t == '{':
                    k += 1
                    while c[k].t != '}':
                        if c[k].t == ',': k += 1; continue
                        k = tree(k, segs)
                    return k + 1
                elif t.t == '*':
                    leaves.append((segs, '*')); return k + 1
                elif t.t in (',', '}'):
                    break
                else: k += 1
            leaves.append((segs, None))
            return k
        tree(j, [])
        f.__dict__.setdefault('leaves', []).extend((sc, segs, alias) for segs, alias in leaves)
        for segs, alias in leaves:
            names = [s.t for s in segs]
            if alias == '*': sc.globs.append(names)
            else:
                if names and names[-1] == 'self': names = names[:-1]
                if not names: continue
                name = alias or names[-1]
                if name != '_':
                    sc.uses.setdefault(name, [])
                    if names not in sc.uses[name]: sc.uses[name].append(names)

    # resolution ------------------------------------------------------------
    def lookup(self, scope, name, depth=0, seen=(), value=False):
        if depth > 20: return None
        if name in scope.defs and not (value and scope.defs[name] == 'mod' and name in scope.uses): return scope.path + (name,)
        key = (scope.path, name)
        if key in seen: return None
        seen = seen + (key,)
        for segs in scope.uses.get(name, ()):
            if segs == [name]:
                if name in self.crates: return (name,)
                continue
            r = self.resolve(scope, segs, None, depth + 1, seen)
            if r: return r
        for segs in scope.globs:
            m = self.resolve(scope, segs, None, depth + 1, seen)
            if m is None: continue
            if m in self.enums:
                if name in self.enums[m]: return m + (name,)
            elif m in self.scopes and m != scope.path:
                r = self.lookup(self.scopes[m], name, depth + 1, seen)
                if r: return r
        return None

    def resolve(self, scope, segs, self_type=None, depth=0, seen=()):
        r = self.prefixes(scope, segs, self_type, depth, seen)
        return r[-1] if r else None

    def prefixes(self, scope, segs, self_type=None, depth=0, seen=(), value=False):
        """Canonical path for each prefix of segs (None where unknown)."""
        out = []
        first = segs[0]
        if first == 'crate': cur = (scope.path[0],)
        elif first == 'self': cur = scope.path
        elif first == 'super': cur = scope.path[:-1]
        elif first == 'Self':
            cur = self.resolve(scope, self_type, None, depth + 1, seen) if self_type and self_type[0] != 'Self' else None
        else:
            cur = self.lookup(scope, first, depth + 1, seen, value and len(segs) == 1)
            if cur is None and first in self.crates: cur = (first,)
        out.append(cur)
        for at, s in enumerate(segs[1:], 1):
            if cur is not None:
                if s == 'super': cur = cur[:-1]
                elif s == 'self': pass
                elif cur in self.scopes:
                    cur = self.lookup(self.scopes[cur], s, depth + 1, seen, value and at == len(segs) - 1)
                else: cur = cur + (s,)
            out.append(cur)
        return out

    def kind(self, path):
        sc = self.scopes.get(path[:-1])
        return sc.defs.get(path[-1]) if sc else ('assoc' if path else None)

    # renaming --------------------------------------------------------------
    def rename_items(self, table):
        """table: canonical path tuple -> new name."""
        names = {p[-1] for p in table}
        for f in self.files:
            in_use = set()
            for sc, segs, alias in f.__dict__.get('leaves', []):
                for s in segs: in_use.add(id(s))
                texts = [s.t for s in segs]
                if not names.intersection(texts): continue
                outside = texts[0] in self.crates
                for tok, path in zip(segs, self.prefixes(sc, texts, value=outside and len(texts) == 2)):
                    if path in table and tok.t == path[-1]:
                        tok.new = table[path]; self.used_rules.add(path)
            c = f.code
            i, n = 0, len(c)
            while i < n:
                t = c[i]
                if t.k != 'id' or id(t) in in_use or id(t) in f.derive: i += 1; continue
                prev = c[i-1].t if i else ''
                if t.variant is not None:
                    p = t.variant + (t.t,)
                    if p in table: t.new = table[p]; self.used_rules.add(p)
                    i += 1; continue
                chain = [i]; j = i
                while j + 2 < n and c[j+1].t == '::' and c[j+2].k == 'id':
                    chain.append(j + 2); j += 2
                i = j + 1
                if prev in ('.', '::'): continue
                if prev == "'" : continue
                texts = [c[k].t for k in chain]
                if not names.intersection(texts) and texts[0] not in self.drop: continue
                scope = t.scope
                if scope is None: continue
                after = c[j+1].t if j + 1 < n else ''
                if len(chain) == 1 and prev in ('type', 'const', 'fn', 'struct', 'enum', 'trait', 'static') and t.self is not None: continue
                paths = self.prefixes(scope, texts, t.self, value=after == '(')
                for k, p in zip(chain, paths):
                    if p not in table: continue
                    if c[k].t != p[-1] and not (c[k].t in self.drop and len(p) > 1): continue
                    if len(chain) == 1 and p[-1][0].islower():
                        kd = self.kind(p)
                        ok = prev in ('fn', 'mod') or (kd in ('fn', 'macro') and (after in ('(', '!') or (prev in ('(', ',') and after in (')', ',')) ))
                        if not ok: continue
                        if kd == 'fn' and prev == 'fn' and t.self is not None: continue
                    c[k].new = table[p]; self.used_rules.add(p)
            for k, t in enumerate(c):
                if t.k == 'str' and k >= 2 and c[k-1].t == '=' and c[k-2].t in ('skip_serializing_if', 'default', 'with', 'try_from', 'from', 'into', 'deserialize_with', 'serialize_with', 'schema_with'):
                    body = t.t[1:-1]
                    if t.scope is None: t.scope = c[k-2].scope
                    if re.fullmatch(r'[A-Za-z_]\w*(::\w+)*', body) and t.scope is not None:
                        segs = body.split('::')
                        paths = self.prefixes(t.scope, segs, t.self)
                        new = [table[p] if p in table and s == p[-1] else s for s, p in zip(segs, paths)]
                        if new != segs: t.new = '"' + '::'.join(new) + '"'
            self.comments(f, table, names)

    LINK = re.compile(r'`([A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)((?:\(\)|<[^`]*>|!)?)`')
    def comments(self, f, table, names):
        for t in f.toks:
            if t.k not in ('doc', 'block') or t.scope is None: continue
            base = t.new or t.t
            def sub(m):
                segs = m.group(1).split('::')
                if not names.intersection(segs): return m.group(0)
                if len(segs) == 1 and segs[0][0].islower() and not m.group(2) and '[' + m.group(0) not in base: return m.group(0)
                paths = self.prefixes(t.scope, segs, t.self)
                new = [table[p] if p in table and s == p[-1] else s for s, p in zip(segs, paths)]
                return '`' + '::'.join(new) + m.group(2) + '`'
            new = self.LINK.sub(sub, base)
            if new != t.t: t.new = new

    def rename_tokens(self, rules):
        """rules: (list of path globs, mode, {old: new}); also in backticks of comments and inline captures."""
        for f in self.files:
            for globs, mode, table in rules:
                if not matches(f.path, globs): continue
                c = f.code
                for i, t in enumerate(c):
                    if t.k == 'id' and t.new is None and t.t in table:
                        prev = c[i-1].t if i else ''; nxt = c[i+1].t if i + 1 < len(c) else ''
                        if mode == 'method':
                            if not (prev in ('.', 'fn') or (prev == '::' and t.t[0].islower())): continue
                            if prev == '.' and nxt not in ('(', '::'): continue
                            if prev == '::' and nxt == '::': continue
                        elif mode.startswith('recv:'):
                            if prev != '.' or receiver(c, i) not in mode[5:].split(','): continue
                        elif mode == 'field':
                            if prev == '.' and nxt in ('(', '::') : continue
                            if prev in ('fn', '::') or nxt == '::': continue
                            if nxt == '(' and prev != '.': continue
                        elif mode == 'dotfield':
                            if not ((prev == '.' and nxt not in ('(', '::')) or (nxt == ':' and prev in ('{', ',', 'pub', ')', ']'))): continue
                        t.new = table[t.t]; self.used_rules.add((tuple(globs), t.t))
                    elif t.k == 'str' and mode in ('any', 'field'):
                        base = t.new or t.t
                        new = re.sub(r'(?<!\{)\{(\w+)(?=[:}])', lambda m: '{' + table.get(m.group(1), m.group(1)), base)
                        if new != base and t.k == 'str' and self.is_format(c, i): t.new = new
                for t in f.toks:
                    if t.k in ('doc', 'block'):
                        base = t.new or t.t
                        new = re.sub(r'`((?:\w+::)*)(\w+)(\(\))?`', lambda m: '`' + m.group(1) + table.get(m.group(2), m.group(2)) + (m.group(3) or '') + '`', base)
                        if new != base: t.new = new

    @staticmethod
    def is_format(c, i):
        return True

    def write(self):
        changed = []
        for f in self.files:
            if not any(t.new is not None and t.new != t.t for t in f.toks): continue
            out, pos = [], 0
            for t in f.toks:
                if t.new is not None:
                    out.append(f.text[pos:t.s]); out.append(t.new); pos = t.e
            out.append(f.text[pos:])
            new = ''.join(out)
            if new != f.text:
                open(os.path.join(self.tree, f.path), 'w', encoding='utf-8').write(new)
                f.text = new
                changed.append(f.path)
        return changed
