"""A chapter that is watched: it notes the line of each statement of a function before the statement runs.

That costs the chapter's own code a little and nothing else any time, so that a test of any length can be
watched to its end. A tracer would be called for every function of every library.
"""

import ast
from typing import Any

RAN = "_ran"
"""The chapter's set of line numbers."""


def watched(source: str) -> ast.Module:
    """Return a chapter's tree with the notes in it; they go into a set `RAN` in its namespace."""
    tree = ast.parse(source)
    _Notes().visit(tree)
    return ast.fix_missing_locations(tree)


def _note(line: int) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(RAN, ast.Load()), "add", ast.Load()), [ast.Constant(line)], [])


class _Notes(ast.NodeTransformer):
    """Puts the notes in. What runs at import has none: a mutant of it meets every test."""

    def __init__(self) -> None:
        self._inside = False

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outside, self._inside = self._inside, True
        node.body = self._noted(node.body)
        self._inside = outside
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """Let a lambda note its line when it is called, which may be long after its statement ran."""
        values = ast.Tuple([_note(node.body.lineno), node.body], ast.Load())
        node.body = ast.Subscript(values, ast.Constant(1), ast.Load())
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not self._inside:
            return super().generic_visit(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, field, self._noted(value))
            elif isinstance(value, list):
                setattr(node, field, [self._visited(each) for each in value])
            else:
                setattr(node, field, self._visited(value))
        return node

    def _visited(self, value: Any) -> Any:
        return self.visit(value) if isinstance(value, ast.AST) else value

    def _noted(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        noted: list[ast.stmt] = []
        for statement in statements:
            lines = [statement.lineno]
            if isinstance(statement, ast.Match):  # which patterns are tried cannot be noted: all of them
                lines += [case.pattern.lineno for case in statement.cases]
            noted += [ast.Expr(_note(line)) for line in lines]
            noted.append(self.visit(statement))
        return noted
