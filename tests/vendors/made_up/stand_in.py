"""The stand-in for the made-up vendor, which takes its own key alone."""

from collections.abc import Mapping
from typing import Any

from tests.vendors.openai import StubOpenAI


class StubAcme(StubOpenAI):
    request_header = "acme-request"

    def violations(self, wanted: Mapping[str, Any]) -> list[str]:
        has_key = self.asked[-1].headers.get("authorization") == "Bearer key-of-acme"
        return super().violations(wanted) if has_key else ["authorization: another vendor's key"]
