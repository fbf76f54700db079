#!/usr/bin/env python3
"""apply.py TREE: renames the vocabulary of the project in a checkout; running it again changes nothing.

Steps: items (modules, types, functions, variants) by name resolution; methods and fields by token rules;
text by literal rules; moved files. Run `cargo fmt --all` after it.
"""
import os, re, sys, subprocess, glob
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from engine import World
from items import items, MACRO_DEFS, DROP_ALIASES
from tokens import TOKENS
from texts import TEXTS, MARKDOWN_WORDS
import wrap

def main():
    tree = os.path.abspath(sys.argv[1])
    verbose = '-v' in sys.argv
    w = World(tree)
    w.drop = DROP_ALIASES
    table = items()
    for p in MACRO_DEFS.split():
        p = tuple(p.split('::'))
        if p[:-1] in w.scopes:
            base = w.scopes[p[:-1]]
            f = next((f for f in w.files if f.module == p[:-1]), None)
            if f and any(t.k == 'id' and t.t == p[-1] for t in f.code): base.defs[p[-1]] = 'struct'
    for a in [p for p in table if p[:3] == ('api', 'rest', 'asked') and len(p) == 4]:
        if a[:-1] in w.scopes: w.scopes[a[:-1]].defs[a[-1]] = 'struct'
    # collisions that the resolver can see
    for p, n in table.items():
        sc = w.scopes.get(p[:-1])
        if sc and p[-1] in sc.defs and n in sc.defs: print(f'warning: {"::".join(p)} -> {n}: both exist')
    w.rename_items(table)
    w.rename_tokens(TOKENS)
    changed = set(w.write())
    # moved files
    moves = {}
    for f in w.files:
        parts = f.path.split('/')
        mod = f.module
        # components of the path that are modules, from the right
        comps = list(parts)
        root = len(parts) - 1
        depth = len(mod) - 1
        stem = parts[-1][:-3]
        is_mod_file = stem in ('mod',)
        idx = len(parts) - 1 - (1 if is_mod_file else 0)
        k = len(mod)
        while k > 1:
            p = mod[:k]
            if p in table and p in w.scopes:
                comps[idx] = table[p] + ('.rs' if idx == len(parts) - 1 else '')
            idx -= 1; k -= 1
        new = '/'.join(comps)
        if new != f.path: moves[f.path] = new
    for old, new in moves.items():
        dst = os.path.join(tree, new)
        if os.path.exists(dst): print(f'warning: {old}: {new} exists'); continue
        os.makedirs(os.path.dirname(dst), exist_ok=True)
        r = subprocess.run(['git', '-C', tree, 'mv', old, new], capture_output=True)
        if r.returncode: os.rename(os.path.join(tree, old), dst)
    # directories that held only non-Rust files besides are moved file by file: keep data files beside
    for old, new in (('docs/design/0005-memo.md', 'docs/design/0005-spec-backup.md'),):
        if os.path.exists(os.path.join(tree, old)):
            if subprocess.run(['git', '-C', tree, 'mv', old, new], capture_output=True).returncode: os.rename(os.path.join(tree, old), os.path.join(tree, new))
    text_rules(tree, moves, table, w)
    for d in sorted({os.path.dirname(os.path.join(tree, o)) for o in moves}, reverse=True):
        try:
            if not os.listdir(d): os.rmdir(d)
        except OSError: pass
    print(f'{len(changed)} files renamed in, {len(moves)} files moved')
    if verbose:
        for p in table:
            if p not in w.used_rules: print('unused:', '::'.join(p))

def text_rules(tree, moves, table, w):
    paths = []
    listed = subprocess.run(['git', '-C', tree, 'ls-files', '-co', '--exclude-standard'], capture_output=True, text=True).stdout.split('\n')
    for rel in listed:
        if re.search(r'\.(rs|md|txt|json|toml|yaml|yml|sh|tpl)$', rel) and '/proto/' not in rel and os.path.exists(os.path.join(tree, rel)):
            paths.append(rel)
    # suffixes of moved paths, for prose such as `daemon/kept.rs`
    full = [(re.escape(o), n) for o, n in all_moves(moves, table)]
    short = {}
    for o, n in all_moves(moves, table):
        so, sn = '/'.join(o.split('/')[-2:]), '/'.join(n.split('/')[-2:])
        if so.startswith('src/'): continue
        short.setdefault(so, set()).add(sn)
    short = {o: next(iter(ns)) for o, ns in short.items() if len(ns) == 1 and o not in ns}
    fullmap = {o: n for o, n in all_moves(moves, table)}
    rx_full = re.compile('|'.join(sorted((re.escape(o) for o in fullmap), key=len, reverse=True))) if fullmap else None
    rx_short = re.compile(r'(?<![\w/.])(' + '|'.join(sorted((re.escape(o) for o in short), key=len, reverse=True)) + r')(?!\w)') if short else None
    for rel in paths:
        p = os.path.join(tree, rel)
        try: text = open(p, encoding='utf-8').read()
        except UnicodeDecodeError: continue
        new = text
        if rx_full: new = rx_full.sub(lambda m: fullmap[m.group()], new)
        if rx_short: new = rx_short.sub(lambda m: short[m.group(1)], new)
        if rel == 'tidy/ratchet.txt': new = ratchet(new, w, table, fullmap)
        for globs, rules in TEXTS:
            if not any(__import__('fnmatch').fnmatch(rel, g) for g in globs): continue
            for rule in rules:
                if isinstance(rule[0], str): new = new.replace(*rule)
                else: new = rule[0].sub(rule[1], new)
        if rel.endswith('.md'):
            for rx, to in MARKDOWN_WORDS: new = rx.sub(to, new)
        if rel.endswith('.rs'): new = re.sub(r'\b([A-Z]\w+) as \1\b', r'\1', new)
        if rel.endswith('.md'): new = wrap.md(new)
        if rel.endswith('.rs') and '/proto/' not in rel: new = wrap.rust(new)
        if new != text: open(p, 'w', encoding='utf-8').write(new)

def all_moves(moves, table):
    return list(moves.items())

def ratchet(text, w, table, fullmap):
    back = {n: o for o, n in fullmap.items()}
    mods = {f.path: f.module for f in w.files}
    out = []
    for line in text.split('\n'):
        f = line.split(' ')
        if len(f) == 4 and not line.startswith('#'):
            mod = mods.get(back.get(f[1], f[1]))
            if mod:
                segs = f[2].split('::')
                sc = w.scopes.get(mod)
                ps = w.prefixes(sc, segs) if sc else []
                f[2] = '::'.join(table.get(p, s) if p else s for s, p in zip(segs, ps)) if ps else f[2]
            line = ' '.join(f)
        out.append(line)
    return '\n'.join(out)

if __name__ == '__main__': main()
