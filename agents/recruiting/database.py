"""The company's recruiting records: where they are, and the way to open them."""

from agents.records import Records

RECORDS = Records("agents.recruiting", "RECRUITING_DB")
connected = RECORDS.connected
