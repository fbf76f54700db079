"""Wraps prose that the renames made too wide: words move to the next line of the same paragraph."""
import re

COMMENT = re.compile(r'^(\s*//[/!]?)( ?)(.*)$')
START = re.compile(r'^(\s*)([-*>|#]|\d+\.)(\s|$)')

def push(lines, k, limit, prefix, is_text, indent_of):
    """Moves words off the end of line k until it fits; returns whether it could."""
    while len(lines[k]) > limit:
        body = lines[k]
        at = body.rfind(' ', 0, limit + 1)
        head = len(prefix(body))
        if at <= head + 1 or not body[head:at].strip() or re.fullmatch(r'\s*([-*>]|\d+\.)?\s*', body[head:at]): return
        rest = body[at + 1:].strip()
        # do not break inside a code span
        if body[:at].count('`') % 2:
            at = body.rfind(' `', 0, at)
            if at <= head + 1: return
            rest = body[at + 1:].strip()
        lines[k] = body[:at].rstrip()
        cont = prefix(body) + indent_of(body)
        nxt = lines[k + 1] if k + 1 < len(lines) else None
        if nxt is not None and is_text(nxt) and prefix(nxt) == prefix(body) and indent_of(nxt, True) == indent_of(body):
            lines[k + 1] = cont + rest + ' ' + nxt[len(cont):].lstrip()
            k += 1
        else:
            lines.insert(k + 1, cont + rest)
            k += 1

def md(text, limit=120):
    lines = text.split('\n'); code = False; k = 0
    def prefix(line): return ''
    def indent_of(line, own=False):
        m = re.match(r'^(\s*)((?:[-*]|\d+\.)\s+|>\s+)?', line)
        if own: return re.match(r'^\s*(>\s+)?', line).group()
        g = m.group(2) or ''
        return m.group(1) + (g if g.startswith('>') else ' ' * len(g))
    def is_text(line): return bool(line.strip()) and not START.match(line) and not line.lstrip().startswith(('```', '|', '<!--'))
    while k < len(lines):
        if lines[k].lstrip().startswith('```'): code = not code
        if not code and len(lines[k]) > limit and not lines[k].lstrip().startswith(('|', '#')):
            push(lines, k, limit, prefix, is_text, indent_of)
        k += 1
    return '\n'.join(lines)

def rust(text, limit=100):
    lines = text.split('\n'); k = 0; code = False; last = None
    def prefix(line):
        m = COMMENT.match(line)
        return m.group(1) + (' ' if m else '') if m else ''
    def indent_of(line, own=False):
        body = line[len(prefix(line)):]
        m = re.match(r'^(\s*)((?:[-*]|\d+\.)\s+)?', body)
        if own: return m.group(1)
        return m.group(1) + ' ' * len(m.group(2) or '')
    def is_text(line):
        m = COMMENT.match(line)
        return bool(m and m.group(3).strip() and not START.match(m.group(3)) and not m.group(3).lstrip().startswith(('```', '|')))
    while k < len(lines):
        m = COMMENT.match(lines[k])
        if not m: code = False; k += 1; continue
        if m.group(3).lstrip().startswith('```'): code = not code
        elif not code and len(lines[k]) > limit and not m.group(3).lstrip().startswith('|'):
            push(lines, k, limit, prefix, is_text, indent_of)
        k += 1
    return '\n'.join(lines)
