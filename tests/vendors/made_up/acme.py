"""A made-up vendor, as its file in `mesh/model/vendors/` would be: an API like OpenAI's, keys of its own."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mesh.model.vendor import Section
from mesh.model.vendors.openai import OpenAIModel

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY, SERVER = "ACME_KEY", "ACME_SERVER"


class AcmeModel(OpenAIModel):
    """One of Acme's models."""

    vendor = "acme"
    keys = (KEY,)
    opened_by = (KEY, SERVER)
    price_list = "mistral"
    request_header = "acme-request"

    def _connected(self, **more: Any) -> "AsyncOpenAI":
        from openai import AsyncOpenAI

        key, server = os.environ.get(KEY), os.environ.get(SERVER)
        return AsyncOpenAI(api_key=key, base_url=server, max_retries=0, **more)

    def printed(self, request: Mapping[str, Any]) -> Iterator[Section]:
        for section in super().printed(request):
            yield section._replace(heading=f"Acme's {section.heading}")


VENDOR = AcmeModel
