-- Recruiting records. Pay in whole euros a year; days and times as ISO 8601.

CREATE TABLE vacancies (
    id        TEXT PRIMARY KEY,
    title     TEXT NOT NULL UNIQUE COLLATE NOCASE,
    status    TEXT NOT NULL CHECK (status IN ('open', 'filled')),
    min_years INTEGER NOT NULL CHECK (min_years >= 0),
    urgent    INTEGER NOT NULL DEFAULT 0 CHECK (urgent IN (0, 1)),   -- an offer is prepared before the interview
    low       INTEGER NOT NULL CHECK (low > 0),                      -- the band that it may be paid in
    high      INTEGER NOT NULL,
    CHECK (high >= low)
);

CREATE TABLE skills (skill TEXT PRIMARY KEY COLLATE NOCASE);         -- every one that anybody here asks for

CREATE TABLE needs (
    vacancy_id TEXT NOT NULL REFERENCES vacancies,
    skill      TEXT NOT NULL REFERENCES skills,
    PRIMARY KEY (vacancy_id, skill)
);

CREATE TABLE colleagues (                                            -- what those in the same work are paid
    vacancy_id TEXT NOT NULL REFERENCES vacancies,
    euros      INTEGER NOT NULL CHECK (euros > 0)
);

CREATE TABLE candidates (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    email      TEXT NOT NULL UNIQUE COLLATE NOCASE,
    phone      TEXT,
    birth_date TEXT,
    years      INTEGER CHECK (years >= 0),                           -- of experience; NULL: not known
    expects    INTEGER CHECK (expects > 0)
);

CREATE TABLE candidate_skills (
    candidate_id TEXT NOT NULL REFERENCES candidates,
    skill        TEXT NOT NULL REFERENCES skills,
    PRIMARY KEY (candidate_id, skill)
);

CREATE TABLE papers (                                                -- on file from earlier applications
    candidate_id TEXT PRIMARY KEY REFERENCES candidates,
    years        INTEGER                                             -- NULL: they do not say
);

CREATE TABLE applications (
    candidate_id TEXT NOT NULL REFERENCES candidates,
    vacancy_id   TEXT NOT NULL REFERENCES vacancies,
    status       TEXT NOT NULL DEFAULT 'received' CHECK (status IN ('received', 'invited', 'rejected', 'offered')),
    PRIMARY KEY (candidate_id, vacancy_id)
);

CREATE TABLE slots (
    id           TEXT PRIMARY KEY,
    vacancy_id   TEXT NOT NULL REFERENCES vacancies,
    starts       TEXT NOT NULL,
    candidate_id TEXT REFERENCES candidates                          -- NULL: free
);
CREATE INDEX slots_of ON slots (vacancy_id, starts);

CREATE TABLE interviews (
    candidate_id TEXT NOT NULL REFERENCES candidates,
    vacancy_id   TEXT NOT NULL REFERENCES vacancies,
    result       TEXT NOT NULL CHECK (result IN ('hire', 'no hire')),
    PRIMARY KEY (candidate_id, vacancy_id)
);

CREATE TABLE offers (
    id           TEXT PRIMARY KEY,
    candidate_id TEXT NOT NULL REFERENCES candidates,
    vacancy_id   TEXT NOT NULL REFERENCES vacancies,
    euros        INTEGER NOT NULL CHECK (euros > 0),
    reasons      TEXT NOT NULL,
    status       TEXT NOT NULL DEFAULT 'draft' CHECK (status IN ('draft', 'reviewed', 'sent')),
    UNIQUE (candidate_id, vacancy_id)                                -- the key: nobody is sent two offers
);

-- Words that give a decision away as not being about the work, and what they are about.
CREATE TABLE grounds (
    word   TEXT PRIMARY KEY,
    ground TEXT NOT NULL
);

CREATE TABLE mails (
    candidate_id TEXT NOT NULL REFERENCES candidates,
    kind         TEXT NOT NULL CHECK (kind IN ('interview', 'rejection', 'offer')),
    text         TEXT NOT NULL
);

-- What was done, by idempotency key: the same key again is answered from here, and does nothing.
CREATE TABLE effects (
    idempotency_key TEXT PRIMARY KEY,
    tool            TEXT NOT NULL,
    result          TEXT NOT NULL                                    -- JSON
);
