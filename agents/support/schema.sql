-- The provider's records. Money in euro cents, days as ISO 8601 dates.

CREATE TABLE areas (
    area    TEXT PRIMARY KEY,
    status  TEXT NOT NULL CHECK (status IN ('ok', 'outage', 'maintenance')),
    message TEXT NOT NULL
);

CREATE TABLE customers (
    id     TEXT PRIMARY KEY,
    name   TEXT NOT NULL,
    email  TEXT NOT NULL UNIQUE COLLATE NOCASE,
    phone  TEXT NOT NULL,
    area   TEXT NOT NULL REFERENCES areas,
    status TEXT NOT NULL CHECK (status IN ('active', 'suspended', 'closed')),
    since  TEXT NOT NULL
);

CREATE TABLE subscriptions (
    id           TEXT PRIMARY KEY,
    customer_id  TEXT NOT NULL REFERENCES customers,
    plan         TEXT NOT NULL,
    cents        INTEGER NOT NULL CHECK (cents > 0),   -- a month
    status       TEXT NOT NULL CHECK (status IN ('active', 'cancelled')),
    paid_until   TEXT NOT NULL,
    cancelled_on TEXT,
    CHECK ((status = 'cancelled') = (cancelled_on IS NOT NULL))
);
CREATE INDEX subscriptions_of ON subscriptions (customer_id);

CREATE TABLE charges (
    id              TEXT PRIMARY KEY,
    customer_id     TEXT NOT NULL REFERENCES customers,
    subscription_id TEXT REFERENCES subscriptions,
    what            TEXT NOT NULL,
    cents           INTEGER NOT NULL CHECK (cents > 0),
    day             TEXT NOT NULL,
    status          TEXT NOT NULL DEFAULT 'paid' CHECK (status IN ('paid', 'failed'))
);
CREATE INDEX charges_of ON charges (customer_id, day);

CREATE TABLE refunds (
    charge_id TEXT PRIMARY KEY REFERENCES charges,     -- the key: nothing is given back twice
    cents     INTEGER NOT NULL CHECK (cents > 0),
    reason    TEXT NOT NULL,
    day       TEXT NOT NULL
);

CREATE TABLE devices (
    id               TEXT PRIMARY KEY,
    customer_id      TEXT NOT NULL REFERENCES customers,
    kind             TEXT NOT NULL CHECK (kind IN ('router', 'mesh point', 'set-top box')),
    model            TEXT NOT NULL,
    firmware         TEXT NOT NULL,
    online           INTEGER NOT NULL DEFAULT 1 CHECK (online IN (0, 1)),
    link             INTEGER NOT NULL DEFAULT 1 CHECK (link IN (0, 1)),            -- it sees the line
    self_test        TEXT NOT NULL DEFAULT 'ok' CHECK (self_test IN ('ok', 'failed')),
    bad_settings     INTEGER NOT NULL DEFAULT 0 CHECK (bad_settings IN (0, 1)),    -- nobody can see this
    signal_dbm       INTEGER NOT NULL DEFAULT -52,
    loss_percent     REAL NOT NULL DEFAULT 0.1,
    celsius          INTEGER NOT NULL DEFAULT 44,
    uptime_hours     INTEGER NOT NULL DEFAULT 300
);
CREATE INDEX devices_of ON devices (customer_id);

CREATE TABLE help (
    topic  TEXT PRIMARY KEY,
    words  TEXT NOT NULL,                              -- what people call it
    answer TEXT NOT NULL
);

-- What was done, by idempotency key: the same key again is answered from here, and does nothing.
CREATE TABLE effects (
    idempotency_key TEXT PRIMARY KEY,
    tool            TEXT NOT NULL,
    result          TEXT NOT NULL                      -- JSON
);
