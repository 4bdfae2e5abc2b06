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
_WORDS = frozenset({"detail", "hint", "message", "strict"})
"""Arguments that hold words for people: tests assert rules and numbers. `strict` of `zip` is an assertion."""


class Mutant(NamedTuple):
    """One fault."""

    line: int
    """Where it is, counted from 1."""
    was: str
    """The text of the place."""
    now: str
    source: str
    """The whole file with the fault."""
    lines: range | None
    """Those of its statement: only a test that runs one of them can notice it. None if they run at import."""
    function: str
    """Where it is; empty for what stands outside of all functions."""

    @property
    def name(self) -> str:
        """What tells it from the others of its file, however lines move."""
        place = f"{self.function}: " if self.function else ""
        return f"{place}{self.was} => {self.now}"


class Place(NamedTuple):
    """A piece of a source, and what takes its place."""

    node: ast.expr | ast.stmt
    now: str
    lines: range | None
    function: str


def mutants(source: str) -> Iterator[Mutant]:
    """Yield every mutant of a source, from its beginning on."""
    encoded = source.encode()
    starts = [0]
    for line in encoded.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, now, lines, function in sorted(_places(ast.parse(source)), key=lambda place: place.node.lineno):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        was = " ".join(encoded[begin:end].decode().split())
        changed = encoded[:begin] + now.encode() + encoded[end:]
        yield Mutant(node.lineno, was, now, changed.decode(), lines, function)


def _places(node: ast.AST, lines: range | None = None, function: str = "") -> Iterator[Place]:
    """Yield what can be changed in a node and beneath it; not in annotations, words and assertions.

    Args:
        lines: those of the statement around the node.
        function: in which the node is; empty where it runs at import.
    """
    if function and isinstance(node, ast.stmt):
        body = getattr(node, "body", None)
        end = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        lines = range(node.lineno, max(node.lineno, end) + 1)
    elif function and isinstance(node, ast.match_case):
        lines = range(node.pattern.lineno, max(node.pattern.lineno, node.body[0].lineno - 1) + 1)
    yield from (Place(place, now, lines, function) for place, now in _changes(node))
    if isinstance(node, ast.JoinedStr | ast.Assert | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.FunctionDef):
        yield from _places(node.args, lines, function)
        for statement in node.body:
            yield from _places(statement, function=node.name)
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        if isinstance(node, ast.keyword) and node.arg in _WORDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _places(child, lines, function)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield what can be changed in a node itself: a piece of it, and what takes its place."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.comprehension(ifs=[*tests]):
            for test in tests:
                yield test, "True"
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARED:
            yield node, f"({ast.unparse(left)} {_COMPARED[type(op)]} {ast.unparse(right)})"
        case ast.BoolOp(op=op, values=values):
            word = " or " if isinstance(op, ast.And) else " and "
            yield node, f"({word.join(f'({ast.unparse(each)})' for each in values)})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COMPUTED:
            if not isinstance(left, ast.JoinedStr):
                yield node, f"({ast.unparse(left)} {_COMPUTED[type(operator)]} {ast.unparse(right)})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() as value):
            yield node, str(value + 1)
        case ast.Call(keywords=[*keywords]):
            for keyword in keywords:
                if keyword.arg is not None and keyword.arg not in _WORDS:
                    left_out = [each for each in keywords if each is not keyword]
                    yield node, ast.unparse(ast.Call(node.func, node.args, left_out))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield node, "pass"
