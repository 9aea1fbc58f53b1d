"""Mutants of a source: small changes, each of which some test should notice.

A mutant is a span of the source and the text that stands in its place. What changes no behaviour is left alone:
annotations, docstrings and the text of messages, protocols. So are constants: a limit of one more is as good.
"""

import ast
from collections.abc import Iterator
from typing import Final, NamedTuple

COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SIGNS: Final[dict[type[ast.operator], type[ast.operator]]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
EXTREMES: Final = {"min": "max", "max": "min"}
NOT_BEHAVIOUR: Final = {"annotation", "returns", "decorator_list", "bases", "type_comment"}
CONSTRUCTORS: Final = {"__init__", "__post_init__", "__new__"}
SILENT: Final = {"__slots__", "__all__"}


class Mutant(NamedTuple):
    file: str
    """Its path below the package."""
    line: int
    column: int
    operator: str
    start: int
    """First byte of what is replaced."""
    end: int
    text: str
    """What stands there instead."""
    last_line: int

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}:{self.column}:{self.operator}"

    def applied(self, source: str) -> str:
        """As many lines as before, so that what follows is where it was."""
        raw = source.encode()
        lost = raw[self.start : self.end].count(b"\n") - self.text.count("\n")
        rest = raw[self.end :]
        head, newline, tail = rest.partition(b"\n")
        return (raw[: self.start] + self.text.encode() + head + b"\n" * lost + newline + tail).decode()

    def line_text(self, source: str) -> str:
        return source.splitlines()[self.line - 1].strip()

    def diff(self, source: str) -> str:
        """What is replaced, and by what, on one line each."""
        raw = source.encode()
        first = raw.rfind(b"\n", 0, self.start) + 1
        last = raw.find(b"\n", self.end)
        last = len(raw) if last < 0 else last
        before = " ".join(raw[first:last].decode().split())
        after = " ".join((raw[first : self.start] + self.text.encode() + raw[self.end : last]).decode().split())
        return f"- {before}\n+ {after}"


class Change(NamedTuple):
    operator: str
    node: ast.expr | ast.stmt | ast.pattern
    """What is replaced."""
    text: str
    at: ast.expr | ast.stmt | ast.pattern
    """What gives the mutant its name: of `a + b + c` each sum has its own."""


def mutants_of(source: str, file: str) -> list[Mutant]:
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[str, Mutant] = {}
    for operator, node, text, at in _changes_below(ast.parse(source), ""):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        last_line = node.end_lineno or node.lineno
        mutant = Mutant(file, at.lineno, at.col_offset, operator, start, end, text, last_line)
        found.setdefault(mutant.name, mutant)
    return sorted(found.values())


def _changes_below(node: ast.AST, function: str) -> Iterator[Change]:
    if _changes_nothing(node):
        return
    yield from _changes(node, function)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function = node.name
    for field, value in ast.iter_fields(node):
        if field in NOT_BEHAVIOUR or (field == "keywords" and isinstance(node, ast.ClassDef)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes_below(child, function)


def _changes_nothing(node: ast.AST) -> bool:
    """Nothing in it is worth a mutant."""
    match node:
        case ast.JoinedStr() | ast.Raise():  # the text of messages
            return True
        case ast.ClassDef(bases=bases):
            return any("Protocol" in ast.unparse(base) for base in bases)
        case ast.FunctionDef(name="__repr__"):
            return True
        case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name in SILENT or name.isupper()
        case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
            return name in SILENT or name.isupper() or any(word in ast.unparse(kind) for word in ("TypeAlias", "Final"))
        case ast.Subscript(value=ast.Name(id="Literal" | "Annotated")):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return True
        case _:
            return False


def _changes(node: ast.AST, function: str) -> Iterator[Change]:
    match node:
        case ast.Compare():
            yield from _comparisons(node)
        case ast.BoolOp():
            other, name = (ast.Or(), "and-or") if isinstance(node.op, ast.And) else (ast.And(), "or-and")
            yield Change(name, node, _shown(ast.BoolOp(other, node.values)), node.values[1])
        case ast.UnaryOp(op=ast.Not()):
            yield Change("drop-not", node, _shown(node.operand), node)
        case ast.BinOp() if type(node.op) in SIGNS and not (_is_sequence(node.left) or _is_sequence(node.right)):
            name = "plus-minus" if isinstance(node.op, ast.Add) else "minus-plus"
            yield Change(name, node, _shown(ast.BinOp(node.left, SIGNS[type(node.op)](), node.right)), node.right)
        case ast.Constant(value=int(number)) if not isinstance(number, bool):
            yield Change("int+1", node, str(number + 1), node)
            yield Change("int-1", node, str(number - 1), node)
        case ast.Call(func=ast.Name(id=name) as called) if name in EXTREMES:
            yield Change(f"{name}-{EXTREMES[name]}", called, EXTREMES[name], called)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield from _forced(test, True, False)
        case ast.While(test=test):
            yield from _forced(test, False)
        case ast.comprehension(ifs=tests):
            for test in tests:
                yield from _forced(test, True, False)
        case ast.match_case(guard=ast.expr() as test):
            yield from _forced(test, True, False)
        case ast.stmt():
            yield from _of_statement(node, function)
        case _:
            pass


def _of_statement(node: ast.stmt, function: str) -> Iterator[Change]:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call())):
            yield Change("drop-call", node, "pass", node)
        case ast.AugAssign():
            yield Change("drop-change", node, "pass", node)
            if type(node.op) in SIGNS and not _is_sequence(node.value):
                other = ast.AugAssign(node.target, SIGNS[type(node.op)](), node.value)
                yield Change("plus-minus" if isinstance(node.op, ast.Add) else "minus-plus", node, _text(other), node)
        case ast.Assign(targets=targets) if function not in {"", *CONSTRUCTORS}:
            if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
                yield Change("drop-change", node, "pass", node)
        case ast.Delete(targets=targets) if not any(isinstance(target, ast.Name) for target in targets):
            yield Change("drop-change", node, "pass", node)
        case ast.Break():
            yield Change("break-continue", node, "continue", node)
        case ast.Continue():
            yield Change("continue-break", node, "break", node)
        case ast.Return(value=ast.Constant(value=bool(value))):
            yield Change("return-not", node, f"return {not value}", node)
        case ast.Return(value=ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not()) as value):
            yield Change("return-not", node, f"return not {_shown(value)}", node)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield Change("return-none", node, "return None", node)


def _comparisons(node: ast.Compare) -> Iterator[Change]:
    for number, (op, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
        other = COMPARISONS[type(op)]
        changed = [*node.ops[:number], other(), *node.ops[number + 1 :]]
        name = f"{type(op).__name__}-{other.__name__}".lower()
        yield Change(name, node, _shown(ast.Compare(node.left, changed, node.comparators)), right)


def _forced(test: ast.expr, *values: bool) -> Iterator[Change]:
    if not isinstance(test, ast.Constant):
        for value in values:
            yield Change(f"if-{value}".lower(), test, str(value), test)


def _is_sequence(node: ast.expr) -> bool:
    """Texts, lists and tuples have a sum and no difference: such a mutant only fails to run."""
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return is_text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple | ast.ListComp)


def _text(node: ast.AST) -> str:
    return ast.unparse(ast.fix_missing_locations(node))


def _shown(node: ast.expr) -> str:
    return f"({_text(node)})"
