"""The cost of replies, at the prices that a turn was given. A model without a price is never free.

Telemetry counts tokens and money of new replies alone: a recorded reply was counted when it was paid for.
"""

import time
from contextlib import AbstractContextManager

from msgspec.structs import replace
from opentelemetry.trace import Span

from mesh.agent.errors import Permanent
from mesh.agent.turn import Turn
from mesh.errors import MeshError
from mesh.model.port import Hear, Model, Prompt, Reply
from mesh.service.logs import get_logger
from mesh.telemetry import export as telemetry
from mesh.telemetry import tracing
from protocol.wire.commands import Usage
from protocol.wire.prices import Price, cost, metered, price_of

_log = get_logger(__name__)

_reported: set[str] = set()
"""Models that this process has already reported as unpriced."""


_KINDS = ("input", "cache_read", "cache_write", "cache_write_1h", "output")
_NANO = 1e-9
_CUSTOM = "custom"
"""The provider of a model that names none."""


class BudgetUnpriced(Permanent, code="budget_unpriced"):
    """The budget is in dollars, and the model has no price: no further call is made."""


class Pricing:
    """Asks one turn's model, and prices its replies."""

    def __init__(self, turn: Turn, model: Model) -> None:
        self._turn, self._model = turn, model

    def cost(self, reply: Reply) -> Usage:
        """Return the cost of a reply; 0 dollars if unknown."""
        model = reply.model or self._model.mode
        price = self._price(reply)
        spent = reply.usage.nano_dollars if price is None else cost(reply.tokens, price)
        if not reply.tokens.total:
            return replace(reply.usage, nano_dollars=spent)
        return replace(reply.usage, nano_dollars=spent, models={model: metered(reply.tokens, spent)})

    def _price(self, reply: Reply) -> Price | None:
        """Return the price of the model that replied, or else of the model that was asked."""
        prices = self._turn.execution.prices
        asked = reply.asked or self._model.asked_of(reply.model)
        return price_of(reply.model, prices) or price_of(asked, prices)

    async def reply(self, prompt: Prompt, hear: Hear | None) -> Reply:
        """Return a new reply, after it is counted.

        Raises BudgetUnpriced if a vendor's model has no price; otherwise raises as the model does.
        """
        model = self._to_ask()
        began = time.monotonic()
        with self._span(model) as span:
            try:
                reply = await model.reply(prompt, hear)
            except Exception as error:
                code = error.code if isinstance(error, MeshError) else type(error).__name__
                self._time(model, began, {tracing.ERROR: code})
                raise
            self._time(model, began, {tracing.RESPONSE_MODEL: reply.model or model.mode})
            self._count(span, model, reply)
        if unpriced := self._unpriced(reply):
            self._report_once(unpriced, "in requests of before, its calls count as 0 dollars")
        return reply

    def require(self, reply: Reply) -> None:
        """Raise BudgetUnpriced for a reply without a price, new or recorded, on a budget in dollars."""
        if unpriced := self._unpriced(reply):
            self._refuse(unpriced)

    def _to_ask(self) -> Model:
        """Return the model to ask. On a budget in dollars a fallback without a price is left out."""
        model, fallback = self._model, self._model.fallback
        if model.is_billed and self._is_unpriced(model.mode):
            self._refuse(model.mode)
        if fallback is not None and self._in_dollars and self._is_unpriced(fallback):
            self._report_once(fallback, "it has no price: on a budget of dollars it is not asked")
            return model.alone()
        return model

    def _is_unpriced(self, model: str) -> bool:
        return price_of(model, self._turn.execution.prices) is None

    @property
    def _in_dollars(self) -> bool:
        granted = self._turn.handoff.constraints.budget
        return granted is not None and granted.nano_dollars is not None

    @staticmethod
    def _report_once(model: str, meanwhile: str) -> None:
        if model not in _reported:
            _reported.add(model)
            hint = f"add it to [prices] in the fleet file; {meanwhile}"
            _log.warning("model_unpriced", model=model, hint=hint)

    def _unpriced(self, reply: Reply) -> str:
        """Return the model of a reply if it has no price; else empty."""
        free = not reply.tokens.total or reply.usage.nano_dollars or self._price(reply) is not None
        return "" if free else reply.model or self._model.mode

    def _refuse(self, model: str) -> None:
        if self._in_dollars:
            raise BudgetUnpriced(
                f"the budget is in dollars and {model} has no price: "
                "add it to [prices] and run `mesh request rerun`: this request keeps the prices that it "
                "began with; or limit tokens or model_calls"
            )

    # --- telemetry --------------------------------------------------------------------------------

    def _span(self, model: Model) -> AbstractContextManager[Span]:
        """Open the span of one call, unless the model's SDK makes one."""
        if not tracing.traced() or model.makes_spans:
            return tracing.OFF
        attributes = {
            **self._called(model),
            tracing.AGENT: self._turn.agent,
            tracing.CONVERSATION: self._turn.request,
            tracing.REQUEST: self._turn.request,
        }
        return tracing.span(f"{tracing.CHAT} {model.mode}", tracing.CLIENT, attributes=attributes)

    def _called(self, model: Model) -> dict[str, str]:
        """Return the attributes that GenAI's conventions give a call's span and histograms."""
        attributes = {
            tracing.OPERATION: tracing.CHAT,
            tracing.PROVIDER: model.provider or _CUSTOM,
            tracing.REQUEST_MODEL: model.mode,
        }
        return attributes | ({tracing.SERVER: model.address} if model.address else {})

    def _time(self, model: Model, began: float, more: dict[str, str]) -> None:
        telemetry.model_duration.record(time.monotonic() - began, self._called(model) | more)

    def _count(self, span: Span, model: Model, reply: Reply) -> None:
        """Count a new reply, and complete its span."""
        spent, tokens, name = self.cost(reply), reply.tokens, reply.model or self._model.mode
        if span.is_recording():
            span.set_attribute(tracing.RESPONSE_MODEL, name)
            span.set_attribute(tracing.INPUT_TOKENS, tokens.prompt)
            span.set_attribute(tracing.OUTPUT_TOKENS, tokens.output)
            span.set_attribute(tracing.CACHE_READ_TOKENS, tokens.cache_read)
            span.set_attribute(tracing.CACHE_WRITE_TOKENS, tokens.cache_write + tokens.cache_write_1h)
            if reply.id:
                span.set_attribute(tracing.RESPONSE_ID, reply.id)
            if reply.stop:
                span.set_attribute(tracing.FINISH_REASONS, [reply.stop])
        called = self._called(model) | {tracing.RESPONSE_MODEL: name}
        for kind, count in (("input", tokens.prompt), ("output", tokens.output)):
            if tokens.total:
                telemetry.model_tokens.record(count, called | {tracing.TOKEN_TYPE: kind})
        labels = {tracing.AGENT: self._turn.agent, tracing.MODEL: name}
        for kind in _KINDS:
            if count := getattr(tokens, kind):
                telemetry.tokens.add(count, {**labels, tracing.KIND: kind})
        if not tokens.total and spent.tokens:
            telemetry.tokens.add(spent.tokens, {**labels, tracing.KIND: "all"})
        if spent.nano_dollars > 0:
            telemetry.cost.add(spent.nano_dollars * _NANO, labels)
