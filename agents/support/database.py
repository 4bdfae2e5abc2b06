"""The provider's records: where they are, and the way to open them."""

from agents.records import Records

RECORDS = Records("agents.support", "SUPPORT_DB")
connected = RECORDS.connected
