-- Invented people at reserved addresses (example.com, example.org, example.net; numbers 01632 960xxx).

INSERT INTO vacancies VALUES
    ('v-101', 'Backend Engineer',          'open',   3, 0, 55000,  75000),
    ('v-102', 'Data Analyst',              'open',   2, 1, 45000,  60000),
    ('v-103', 'Support Specialist',        'open',   1, 1, 36000,  50000),
    ('v-104', 'Site Reliability Engineer', 'open',   5, 0, 65000,  90000),
    ('v-105', 'Interface Designer',        'open',   2, 0, 48000,  66000),
    ('v-106', 'Community Manager',         'open',   1, 0, 38000,  52000),
    ('v-107', 'Head of Engineering',       'open',   8, 0, 95000, 130000),
    ('v-108', 'Accountant',                'filled', 3, 0, 42000,  58000);

INSERT INTO skills VALUES
    ('python'), ('sql'), ('statistics'), ('kubernetes'), ('figma'), ('customer care'), ('social media'),
    ('leadership'), ('rust'), ('bookkeeping'), ('native dutch');

INSERT INTO needs VALUES
    ('v-101', 'python'), ('v-101', 'sql'),
    ('v-102', 'sql'), ('v-102', 'statistics'),
    ('v-103', 'customer care'),
    ('v-104', 'python'), ('v-104', 'kubernetes'),
    ('v-105', 'figma'),
    ('v-106', 'social media'), ('v-106', 'native dutch'),   -- somebody put that in who should not have
    ('v-107', 'leadership'),
    ('v-108', 'bookkeeping');

INSERT INTO colleagues VALUES
    ('v-101', 58000), ('v-101', 66000), ('v-102', 45000), ('v-102', 52000), ('v-103', 40000), ('v-103', 44000),
    ('v-104', 68000), ('v-105', 50000), ('v-106', 38000), ('v-107', 110000);

INSERT INTO candidates VALUES
    ('k-1001', 'Nora Lindqvist',   'nora.lindqvist@example.com', '01632 960101', '1991-03-14', 6,    62000),
    ('k-1002', 'Omar Haddad',      'omar.haddad@example.org',    '01632 960102', '1988-07-02', 7,    78000),
    ('k-1003', 'Paula Ricci',      'paula.ricci@example.net',    '01632 960103', '1994-11-23', 3,    NULL),
    ('k-1004', 'Quinn Baker',      'quinn.baker@example.com',    '01632 960104', '1990-01-30', 6,    70000),
    ('k-1005', 'Rafael Costa',     'rafael.costa@example.org',   '01632 960105', '1993-05-17', 4,    72000),
    ('k-1006', 'Sofia Marin',      'sofia.marin@example.net',    '01632 960106', '1996-09-09', 3,    42000),
    ('k-1007', 'Tariq Aziz',       'tariq.aziz@example.com',     '01632 960107', '1992-12-01', 4,    54000),
    ('k-1008', 'Ulla Berg',        'ulla.berg@example.org',      '01632 960108', '1985-04-26', 5,    37000),
    ('k-1009', 'Victor Stone',     'victor.stone@example.net',   '01632 960109', '1995-08-08', NULL, 50000),
    ('k-1010', 'Wen Zhao',         'wen.zhao@example.com',       '01632 960110', '1989-02-11', NULL, 36500),
    ('k-1011', 'Xenia Popova',     'xenia.popova@example.org',   '01632 960111', '1997-06-20', 4,    NULL),
    ('k-1012', 'Yara Nasser',      'yara.nasser@example.net',    '01632 960112', '1990-10-05', NULL, NULL),
    ('k-1013', 'Zeno Wolf',        'zeno.wolf@example.com',      '01632 960113', '1987-03-03', NULL, NULL),
    ('k-1014', 'Amira Sayed',      'amira.sayed@example.org',    '01632 960114', '1992-01-19', 5,    64000),
    ('k-1015', 'Bjorn Olsen',      'bjorn.olsen@example.net',    '01632 960115', '1979-09-29', 12,   125000),
    ('k-1016', 'Carla Mendes',     'carla.mendes@example.com',   '01632 960116', '1995-12-12', 4,    80000),
    ('k-1017', 'Dana Fox',         'dana.fox@example.org',       '01632 960117', '1993-07-27', 4,    60000),
    ('k-1018', 'Eli Grant',        'eli.grant@example.net',      '01632 960118', '1986-05-05', 9,    71000),
    ('k-1019', 'Freya Holm',       'freya.holm@example.com',     '01632 960119', '1991-08-15', 5,    61000),
    ('k-1020', 'Goran Ilic',       'goran.ilic@example.org',     '01632 960120', '1990-02-22', 3,    NULL),
    ('k-1021', 'Hana Sato',        'hana.sato@example.net',      '01632 960121', '1998-10-30', 2,    41000),
    ('k-1022', 'Ivan Petrov',      'ivan.petrov@example.com',    '01632 960122', '1984-06-13', 10,   69000),
    ('k-1023', 'Julia Kern',       'julia.kern@example.org',     '01632 960123', '1999-01-25', 3,    39000),
    ('k-1024', 'Kofi Mensah',      'kofi.mensah@example.net',    '01632 960124', '1994-04-04', 5,    63000);

INSERT INTO candidate_skills VALUES
    ('k-1001', 'python'), ('k-1001', 'sql'),
    ('k-1002', 'python'), ('k-1002', 'kubernetes'),
    ('k-1003', 'figma'),
    ('k-1004', 'python'), ('k-1004', 'sql'),
    ('k-1005', 'python'), ('k-1005', 'kubernetes'),
    ('k-1006', 'social media'),
    ('k-1007', 'sql'), ('k-1007', 'statistics'),
    ('k-1008', 'customer care'),
    ('k-1009', 'sql'), ('k-1009', 'statistics'),
    ('k-1010', 'customer care'),
    ('k-1012', 'python'), ('k-1012', 'sql'),
    ('k-1013', 'python'), ('k-1013', 'sql'),
    ('k-1014', 'python'), ('k-1014', 'sql'),
    ('k-1015', 'leadership'),
    ('k-1016', 'sql'), ('k-1016', 'statistics'),
    ('k-1017', 'python'), ('k-1017', 'sql'),
    ('k-1018', 'python'), ('k-1018', 'sql'),
    ('k-1019', 'python'), ('k-1019', 'sql'), ('k-1019', 'rust'),
    ('k-1020', 'figma'),
    ('k-1021', 'customer care'),
    ('k-1022', 'python'), ('k-1022', 'sql'),
    ('k-1023', 'social media'),
    ('k-1024', 'python'), ('k-1024', 'sql');

INSERT INTO papers VALUES ('k-1009', 4), ('k-1010', 3), ('k-1013', NULL);

INSERT INTO applications VALUES
    ('k-1014', 'v-101', 'invited'), ('k-1015', 'v-107', 'invited'), ('k-1017', 'v-101', 'received'),
    ('k-1018', 'v-101', 'invited'), ('k-1019', 'v-101', 'invited'), ('k-1020', 'v-105', 'received'),
    ('k-1022', 'v-101', 'invited'), ('k-1024', 'v-101', 'invited');

INSERT INTO interviews VALUES
    ('k-1014', 'v-101', 'hire'), ('k-1015', 'v-107', 'hire'), ('k-1018', 'v-101', 'no hire'),
    ('k-1022', 'v-101', 'hire');

INSERT INTO slots VALUES
    ('sl-101', 'v-101', '2026-12-01 10:00', NULL),     ('sl-102', 'v-101', '2026-12-01 11:00', NULL),
    ('sl-103', 'v-101', '2026-12-01 14:00', 'k-1019'), ('sl-104', 'v-101', '2026-12-02 10:00', NULL),
    ('sl-105', 'v-101', '2026-12-02 11:00', NULL),     ('sl-106', 'v-101', '2026-12-02 14:00', 'k-1024'),
    ('sl-107', 'v-101', '2026-12-03 10:00', NULL),     ('sl-108', 'v-101', '2026-12-03 15:00', NULL),
    ('sl-201', 'v-102', '2026-12-01 09:00', NULL),     ('sl-202', 'v-102', '2026-12-01 13:00', NULL),
    ('sl-203', 'v-102', '2026-12-02 09:00', NULL),     ('sl-204', 'v-102', '2026-12-02 13:00', NULL),
    ('sl-205', 'v-102', '2026-12-03 09:00', NULL),     ('sl-206', 'v-102', '2026-12-03 13:00', NULL),
    ('sl-301', 'v-103', '2026-12-01 10:30', NULL),     ('sl-302', 'v-103', '2026-12-01 15:30', NULL),
    ('sl-303', 'v-103', '2026-12-02 10:30', NULL),     ('sl-304', 'v-103', '2026-12-02 15:30', NULL),
    ('sl-305', 'v-103', '2026-12-03 10:30', NULL),     ('sl-306', 'v-103', '2026-12-03 15:30', NULL),
    ('sl-401', 'v-104', '2026-12-04 10:00', NULL),     ('sl-402', 'v-104', '2026-12-04 14:00', NULL),
    ('sl-501', 'v-105', '2026-12-04 09:30', 'k-1020'),
    ('sl-601', 'v-106', '2026-12-04 11:30', NULL),     ('sl-701', 'v-107', '2026-12-04 16:00', NULL);

INSERT INTO grounds VALUES
    ('native', 'origin'), ('nationality', 'origin'), ('foreign', 'origin'), ('accent', 'origin'),
    ('age', 'age'), ('young', 'age'), ('old', 'age'), ('digital native', 'age'),
    ('children', 'family'), ('pregnant', 'sex'), ('woman', 'sex'), ('man', 'sex'),
    ('religion', 'belief'), ('disability', 'disability');
