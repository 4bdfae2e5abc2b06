"""The hand-over graph: agents in layers from the entry on, with hops allowed, made and refused."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from xml.etree.ElementTree import Element

import msgspec

from mesh.service.printable import counted
from mesh.ui.drawing import add, box, fitting, hues, name_of, number, picture, written
from protocol.wire.ids import HUMAN

_NODE_W, _NODE_H = 148.0, 46.0
_LAYER, _ROW = 250.0, 92.0
_MARGIN = 56.0
"""Widths, heights and distances, px."""
_SWEEPS = 4
"""Of ordering layers by their neighbours (barycentre heuristic of Sugiyama et al., 1981)."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """An agent, or people."""

    name: str
    state: str = ""
    """A word that is its class, too: `alive`, `failing`, `absent`; empty if nobody looked."""
    words: str = ""
    """Shown beneath its name."""


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """From one name to another."""

    giver: str
    taker: str
    passed: int = 0
    refused: int = 0


Place = tuple[float, float]
Line = tuple[Place, Place, Place, Place]
"""A cubic Bézier curve."""


def graph(
    nodes: Sequence[Node], edges: Sequence[Edge], *, entry: str | None = None, key: str = "graph"
) -> str:
    """Return who hands over to whom as SVG.

    Args:
        edges: those that may be and those that were; names without a node are left out.
        entry: where requests begin.
    """
    names = [node.name for node in nodes]
    known = [
        edge for edge in edges if edge.giver in names and edge.taker in names and edge.giver != edge.taker
    ]
    layers = _layers(names, known, entry)
    place = _places(layers)
    width = _LAYER * (len(layers) - 1) + _NODE_W + 2 * _MARGIN
    height = max((y for _, y in place.values()), default=0.0) + _NODE_H / 2 + _MARGIN
    root = picture(
        "Who hands over to whom",
        _description(nodes, known),
        width=width,
        height=height,
        kind="graph",
        key=key,
    )
    layer_of = {name: number_ for number_, layer in enumerate(layers) for name in layer}
    lines = _lines(known, place, layer_of)
    for edge in sorted(known, key=lambda each: (each.refused > 0, each.passed > 0)):
        _edge(root, edge, lines[edge.giver, edge.taker], _label_at(edge, known))
    colour = hues(name for name in names if name != HUMAN)
    for node in nodes:
        _node(root, node, place[node.name], colour.get(node.name, "people"), node.name == entry)
    return written(root)


def _description(nodes: Sequence[Node], edges: Sequence[Edge]) -> str:
    used = (
        f"{name_of(edge.giver)} to {name_of(edge.taker)}: {edge.passed} passed, {edge.refused} refused"
        for edge in edges
        if edge.passed or edge.refused
    )
    return "; ".join([counted(len(nodes), "name"), *used])


def _layers(names: Sequence[str], edges: Sequence[Edge], entry: str | None) -> list[list[str]]:
    """Return names by their distance from the entry, ordered so that few edges cross; people come last."""
    ahead: dict[str, list[str]] = {name: [] for name in names}
    for edge in edges:
        if edge.taker != HUMAN:
            ahead[edge.giver].append(edge.taker)
    distance: dict[str, int] = {}
    given = {edge.taker for edge in edges}
    first = [entry] if entry in ahead else []
    for root in (*first, *(name for name in names if name not in given), *names):
        if root in distance or root == HUMAN or root is None:
            continue
        distance[root] = 0
        reached = [root]
        for name in reached:
            for taker in ahead[name]:
                if taker not in distance:
                    distance[taker] = distance[name] + 1
                    reached.append(taker)
    if HUMAN in ahead:
        distance[HUMAN] = max(distance.values(), default=-1) + 1
    layers: list[list[str]] = [[] for _ in range(max(distance.values(), default=-1) + 1)]
    for name in names:
        layers[distance[name]].append(name)
    _order(layers, edges)
    return layers


def _order(layers: list[list[str]], edges: Sequence[Edge]) -> None:
    beside: dict[str, list[str]] = {}
    for edge in edges:
        beside.setdefault(edge.giver, []).append(edge.taker)
        beside.setdefault(edge.taker, []).append(edge.giver)
    for _ in range(_SWEEPS):
        rank = _ranks(layers)
        for layer in layers[1:]:
            layer.sort(key=lambda name: fmean(rank[each] for each in beside.get(name, (name,))))
            rank |= _ranks([layer])


def _ranks(layers: Sequence[Sequence[str]]) -> dict[str, float]:
    return {name: at - (len(layer) - 1) / 2 for layer in layers for at, name in enumerate(layer)}


def _places(layers: Sequence[Sequence[str]]) -> dict[str, Place]:
    """Return the middle of each node."""
    tallest = max((len(layer) for layer in layers), default=1)
    middle = _MARGIN + _NODE_H / 2 + (tallest - 1) * _ROW / 2
    return {
        name: (_MARGIN + _NODE_W / 2 + _LAYER * column, middle + _ROW * (at - (len(layer) - 1) / 2))
        for column, layer in enumerate(layers)
        for at, name in enumerate(layer)
    }


def _node(root: Element, node: Node, place: Place, colour: str, is_entry: bool) -> None:
    x, y = place
    drawn = add(root, "g", class_=f"node {colour} {node.state}{' entry' if is_entry else ''}")
    state = f": {node.words or node.state}" if node.words or node.state else ""
    add(drawn, "title", f"{name_of(node.name)}{name_of(state)}")
    box(drawn, "box", x - _NODE_W / 2, y - _NODE_H / 2, _NODE_W, _NODE_H, rx=10)
    if node.state:
        add(drawn, "circle", cx=x - _NODE_W / 2 + 14, cy=y - (6 if node.words else 0), r=4, class_="state")
    shown = fitting("people" if node.name == HUMAN else node.name, _NODE_W - 44)
    add(drawn, "text", shown, x=x - _NODE_W / 2 + 26, y=y + (-2 if node.words else 4), class_="name")
    if node.words:
        words = fitting(node.words, _NODE_W - 34)
        add(drawn, "text", words, x=x - _NODE_W / 2 + 26, y=y + 14, class_="words")


def _lines(
    edges: Sequence[Edge], place: Mapping[str, Place], layer_of: Mapping[str, int]
) -> dict[tuple[str, str], Line]:
    """Return each edge's curve: ahead from side to side, within a layer around its right side.

    Ends that share a side of a node stand one beneath the other, in the order of their other ends.
    """
    ends: dict[tuple[str, float], list[tuple[float, tuple[str, str], bool]]] = {}
    ahead: dict[tuple[str, str], int] = {}
    for edge in edges:
        pair = (edge.giver, edge.taker)
        ahead[pair] = layer_of[edge.taker] - layer_of[edge.giver]
        leaves, arrives = (1.0, -1.0) if ahead[pair] > 0 else (-1.0, 1.0) if ahead[pair] < 0 else (1.0, 1.0)
        ends.setdefault((edge.giver, leaves), []).append((place[edge.taker][1], pair, True))
        ends.setdefault((edge.taker, arrives), []).append((place[edge.giver][1], pair, False))
    found: dict[tuple[tuple[str, str], bool], Place] = {}
    for (name, side), here in ends.items():
        apart = min(13.0, (_NODE_H - 12) / len(here))
        for at, (_, pair, leaves_) in enumerate(sorted(here)):
            y = place[name][1] + apart * (at - (len(here) - 1) / 2)
            found[pair, leaves_] = (place[name][0] + side * _NODE_W / 2, y)
    return {pair: _curve(found[pair, True], found[pair, False], layers) for pair, layers in ahead.items()}


def _curve(begin: Place, end: Place, layers: int) -> Line:
    (x0, y0), (x3, y3) = begin, end
    if layers == 0:
        bow = 40.0 + abs(y3 - y0) / 6
        return begin, (x0 + bow, y0), (x3 + bow, y3), end
    way = 1.0 if layers > 0 else -1.0
    reach = abs(x3 - x0) * 0.45
    bend = -way * (abs(layers) - 1) * _ROW * 0.62  # past the nodes between
    return begin, (x0 + way * reach, y0 + bend), (x3 - way * reach, y3 + bend), end


def _label_at(edge: Edge, edges: Sequence[Edge]) -> float:
    """Return where on its curve an edge's counts stand: near the end at which fewer others are.

    Of a pair that gives both ways, each near its own end: their curves lie side by side.
    """
    if any((other.giver, other.taker) == (edge.taker, edge.giver) for other in edges):
        return 0.68
    leave = sum(other.giver == edge.giver for other in edges)
    arrive = sum(other.taker == edge.taker for other in edges)
    return 0.6 if leave > arrive else 0.4


def _edge(root: Element, edge: Edge, line: Line, label_at: float) -> None:
    kind = "bad" if edge.refused and not edge.passed else "used" if edge.passed else "unused"
    drawn = add(root, "g", class_=f"edge {kind}")
    said = f"{edge.passed} passed, {edge.refused} refused" if edge.passed or edge.refused else "never used"
    add(drawn, "title", f"{name_of(edge.giver)} to {name_of(edge.taker)}: {said}")
    (x0, y0), *others = line
    points = " ".join(f"{number(x)} {number(y)}" for x, y in others)
    wide = 1.2 + min(3.0, edge.passed**0.5 / 3) if edge.passed else 1.2
    add(drawn, "path", d=f"M{number(x0)} {number(y0)}C{points}", class_="shaft", stroke_width=round(wide, 2))
    _tip(drawn, line)
    if edge.passed or edge.refused:
        _counts(drawn, edge, _at(line, label_at))


def _at(curve: Line, t: float) -> Place:
    """Return the point of a Bézier curve at `t`, 0 to 1 (de Casteljau's weights)."""
    weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3)
    x = sum(weight * point[0] for weight, point in zip(weights, curve, strict=True))
    y = sum(weight * point[1] for weight, point in zip(weights, curve, strict=True))
    return x, y


def _tip(drawn: Element, curve: Line) -> None:
    """Draw the head of an edge, turned as its end comes in."""
    (x2, y2), (x3, y3) = curve[2], curve[3]
    length = max(1e-6, ((x3 - x2) ** 2 + (y3 - y2) ** 2) ** 0.5)
    ux, uy = (x3 - x2) / length, (y3 - y2) / length
    back = (x3 - ux * 9, y3 - uy * 9)
    corners = ((x3, y3), (back[0] - uy * 4.5, back[1] + ux * 4.5), (back[0] + uy * 4.5, back[1] - ux * 4.5))
    add(drawn, "path", d="M" + "L".join(f"{number(x)} {number(y)}" for x, y in corners) + "Z", class_="tip")


def _counts(drawn: Element, edge: Edge, at: Place) -> None:
    """Write how often work passed, and after a cross how often it was refused."""
    passed = f"{edge.passed:,}" if edge.passed else ""
    refused = f"✗ {edge.refused:,}" if edge.refused else ""
    wide = 16 + 6.6 * (len(passed) + len(refused) + (1 if passed and refused else 0))
    box(drawn, "pill", at[0] - wide / 2, at[1] - 10, wide, 20.0, rx=10)
    text = add(drawn, "text", x=at[0], y=at[1] + 4, class_="count", text_anchor="middle")
    if passed:
        add(text, "tspan", passed)
    if refused:
        add(text, "tspan", refused, class_="refused", dx=5 if passed else None)
