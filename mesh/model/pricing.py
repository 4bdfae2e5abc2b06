"""What replies cost, by the prices that a turn was given; a model that has none is never taken to be free."""

from typing import ClassVar

import structlog
from msgspec.structs import replace

from mesh.agent.failures import Permanent
from mesh.agent.turn import Turn
from mesh.model.port import Model, Reply
from protocol.messages import Usage
from protocol.prices import Price, cost, metered, price_of

_log = structlog.get_logger(__name__)

_told: set[str] = set()
"""Models of which this process has said that they have no price."""


class BudgetUnpriced(Permanent):
    """The grant limits dollars, and what the model costs is not known: no (further) call is made blindly."""

    code: ClassVar[str] = "budget_unpriced"


class Pricing:
    """One turn's model, and what its replies cost."""

    def __init__(self, turn: Turn, model: Model) -> None:
        self._turn, self._model = turn, model

    def cost(self, reply: Reply) -> Usage:
        """Return what a reply cost; 0 dollars where nobody knows."""
        model = reply.model or self._model.mode
        price = self._price(reply)
        spent = reply.usage.nano_dollars if price is None else cost(reply.tokens, price)
        if not reply.tokens.total:
            return replace(reply.usage, nano_dollars=spent)
        return replace(reply.usage, nano_dollars=spent, models={model: metered(reply.tokens, spent)})

    def _price(self, reply: Reply) -> Price | None:
        """Return the price of the model that replied, else of the one that was asked."""
        prices = self._turn.prices
        asked_of = getattr(self._model, "asked_of", None)
        asked = self._model.mode if asked_of is None else asked_of(reply.model)
        return price_of(reply.model, prices) or price_of(asked, prices)

    def before(self) -> None:
        """Raise BudgetUnpriced if a vendor's model without a price would be asked on a budget of dollars."""
        asked = self._model.mode
        if hasattr(self._model, "asked_of") and price_of(asked, self._turn.prices) is None:
            self._refuse(asked)

    def after(self, reply: Reply) -> None:
        """Take note of a reply that came just now; say once if nobody knows what it cost."""
        unpriced = self._unpriced(reply)
        if unpriced and unpriced not in _told:
            _told.add(unpriced)
            hint = "add it to [prices] in the fleet file; in requests of before, its calls count as 0 dollars"
            _log.warning("model_unpriced", model=unpriced, hint=hint)

    def require(self, reply: Reply) -> None:
        """Raise BudgetUnpriced if a reply cost nobody knows what, on a budget of dollars; recorded or not."""
        if unpriced := self._unpriced(reply):
            self._refuse(unpriced)

    def _unpriced(self, reply: Reply) -> str:
        """Return the model that gave a reply, if it has no price; empty if it has one."""
        free = not reply.tokens.total or reply.usage.nano_dollars or self._price(reply) is not None
        return "" if free else reply.model or self._model.mode

    def _refuse(self, model: str) -> None:
        granted = self._turn.handoff.constraints.budget
        if granted is not None and granted.nano_dollars is not None:
            raise BudgetUnpriced(
                f"the budget is in dollars and {model} has no price: "
                "add it to [prices] and run `mesh request rerun`: this request keeps the prices that it "
                "began with; or limit tokens or model_calls"
            )
