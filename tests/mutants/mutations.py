"""The faults: each turns one place of a source into what somebody could have written by mistake."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
_COMPUTED: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*"}
_WORDS = frozenset({"detail", "hint", "message"})
"""Arguments that hold words for people: tests assert rules and numbers."""


class Mutant(NamedTuple):
    """One fault."""

    line: int
    """Where it is, counted from 1."""
    was: str
    """The text of the place."""
    now: str
    source: str
    """The whole file with the fault."""

    @property
    def name(self) -> str:
        """What tells it from the others of its file, however lines move."""
        return f"{self.was} => {self.now}"


class Place(NamedTuple):
    """A piece of a source, and what takes its place."""

    node: ast.expr | ast.stmt
    now: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a source, from its beginning on."""
    encoded = source.encode()
    starts = [0]
    for line in encoded.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, now in sorted(_places(ast.parse(source)), key=lambda place: place.node.lineno):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        was = " ".join(encoded[begin:end].decode().split())
        changed = encoded[:begin] + now.encode() + encoded[end:]
        yield Mutant(node.lineno, was, now, changed.decode())


def _places(node: ast.AST) -> Iterator[Place]:
    """Yield what can be changed in a node and beneath it; not in annotations, words and assertions."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return
        case ast.If(test=test) | ast.IfExp(test=test):
            yield Place(test, f"(not ({ast.unparse(test)}))")
        case ast.comprehension(ifs=[*tests]):
            for test in tests:
                yield Place(test, "True")
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            yield Place(node, f"({ast.unparse(left)} {_COMPARED[type(op)]} {ast.unparse(right)})")
        case ast.BoolOp(op=op, values=values):
            word = " or " if isinstance(op, ast.And) else " and "
            yield Place(node, f"({word.join(f'({ast.unparse(each)})' for each in values)})")
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COMPUTED:
            if not isinstance(left, ast.JoinedStr):
                yield Place(node, f"({ast.unparse(left)} {_COMPUTED[type(operator)]} {ast.unparse(right)})")
        case ast.Constant(value=bool() as value):
            yield Place(node, str(not value))
        case ast.Constant(value=int() as value):
            yield Place(node, str(value + 1))
        case ast.Call(keywords=[*keywords]):
            for keyword in keywords:
                if keyword.arg is not None and keyword.arg not in _WORDS:
                    left_out = ast.Call(
                        node.func, node.args, [each for each in keywords if each is not keyword]
                    )
                    yield Place(node, ast.unparse(left_out))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield Place(node, "pass")
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(node, ast.keyword) and node.arg in _WORDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child)
