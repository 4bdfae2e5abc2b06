-- Invented people at reserved addresses (example.com, example.org, example.net; numbers 01632 960xxx).

INSERT INTO areas VALUES
    ('delft', 'ok', 'No known trouble.'),
    ('gouda', 'ok', 'No known trouble.'),
    ('breda', 'ok', 'No known trouble.'),
    ('zwolle', 'ok', 'No known trouble.'),
    ('leiden', 'outage', 'A damaged cable in the centre; repaired by 18:00 today.'),
    ('utrecht', 'maintenance', 'Work on the network between 01:00 and 04:00 tonight.');

INSERT INTO customers VALUES
    ('c-1001', 'Ada Brandt',       'ada.brandt@example.com',     '01632 960001', 'delft',   'active',    '2019-03-04'),
    ('c-1002', 'Bram de Wit',      'bram@example.org',           '01632 960002', 'gouda',   'active',    '2021-07-19'),
    ('c-1003', 'Chiara Conti',     'c.conti@example.net',        '01632 960003', 'breda',   'active',    '2020-11-30'),
    ('c-1004', 'Dmitri Orlov',     'dmitri.orlov@example.com',   '01632 960004', 'delft',   'active',    '2018-01-15'),
    ('c-1005', 'Elif Kaya',        'elif.kaya@example.org',      '01632 960005', 'leiden',  'active',    '2022-05-02'),
    ('c-1006', 'Femi Adeyemi',     'femi.a@example.com',         '01632 960006', 'zwolle',  'active',    '2023-09-11'),
    ('c-1007', 'Grace Lin',        'grace.lin@example.net',      '01632 960007', 'gouda',   'active',    '2017-06-21'),
    ('c-1008', 'Hugo Meyer',       'hugo.meyer@example.com',     '01632 960008', 'breda',   'active',    '2020-02-28'),
    ('c-1009', 'Ines Duarte',      'ines.duarte@example.org',    '01632 960009', 'delft',   'active',    '2024-04-01'),
    ('c-1010', 'Jonas Lind',       'jonas.lind@example.com',     '01632 960010', 'utrecht', 'active',    '2025-10-10'),
    ('c-1011', 'Kiri Walker',      'kiri@example.net',           '01632 960011', 'zwolle',  'active',    '2021-12-05'),
    ('c-1012', 'Luca Ferri',       'luca.ferri@example.org',     '01632 960012', 'gouda',   'active',    '2022-08-17'),
    ('c-1013', 'Mara Novak',       'mara.novak@example.com',     '01632 960013', 'breda',   'active',    '2019-10-23'),
    ('c-1014', 'Nia Okoro',        'nia.okoro@example.net',      '01632 960014', 'delft',   'active',    '2023-01-09'),
    ('c-1015', 'Oskar Berg',       'oskar.berg@example.com',     '01632 960015', 'zwolle',  'active',    '2016-05-27'),
    ('c-1016', 'Priya Nair',       'priya.nair@example.org',     '01632 960016', 'breda',   'active',    '2026-09-14'),
    ('c-1017', 'Quentin Moreau',   'q.moreau@example.com',       '01632 960017', 'gouda',   'suspended', '2024-11-03'),
    ('c-1018', 'Rosa Alvarez',     'rosa.alvarez@example.net',   '01632 960018', 'utrecht', 'active',    '2021-02-14'),
    ('c-1019', 'Sven Dahl',        'sven.dahl@example.com',      '01632 960019', 'delft',   'active',    '2020-07-07'),
    ('c-1020', 'Tomoko Ito',       'tomoko.ito@example.org',     '01632 960020', 'breda',   'active',    '2022-03-18'),
    ('c-1021', 'Uma Patel',        'uma.patel@example.com',      '01632 960021', 'zwolle',  'closed',    '2015-09-01'),
    ('c-1022', 'Viktor Hahn',      'viktor.hahn@example.net',    '01632 960022', 'gouda',   'active',    '2018-12-12'),
    ('c-1023', 'Wanda Zielinska',  'wanda.z@example.com',        '01632 960023', 'delft',   'active',    '2023-06-30'),
    ('c-1024', 'Yusuf Demir',      'yusuf.demir@example.org',    '01632 960024', 'utrecht', 'active',    '2024-02-20'),
    ('c-1025', 'Zoe Keller',       'zoe.keller@example.com',     '01632 960025', 'breda',   'active',    '2022-10-08'),
    ('c-1026', 'Anton Weiss',      'anton.weiss@example.net',    '01632 960026', 'gouda',   'active',    '2019-08-25'),
    ('c-1027', 'Bea Santos',       'bea.santos@example.org',     '01632 960027', 'zwolle',  'active',    '2021-04-16'),
    ('c-1028', 'Cem Aydin',        'cem.aydin@example.com',      '01632 960028', 'delft',   'active',    '2020-01-31'),
    ('c-1029', 'Doro Falk',        'doro.falk@example.net',      '01632 960029', 'breda',   'active',    '2023-11-22'),
    ('c-1030', 'Emil Sand',        'emil.sand@example.com',      '01632 960030', 'utrecht', 'active',    '2025-03-12');

INSERT INTO subscriptions
    SELECT replace(id, 'c-1', 's-2'), id, 'Fiber 500', 4900, 'active', '2026-12-03', NULL FROM customers
    WHERE status <> 'closed';
UPDATE subscriptions SET plan = 'Fiber 1000', cents = 6900
    WHERE customer_id IN ('c-1004', 'c-1007', 'c-1015', 'c-1022', 'c-1028');
UPDATE subscriptions SET plan = 'Fiber 100', cents = 2900
    WHERE customer_id IN ('c-1002', 'c-1009', 'c-1013', 'c-1026', 'c-1029');
UPDATE subscriptions SET status = 'cancelled', cancelled_on = '2026-11-09' WHERE customer_id = 'c-1012';
INSERT INTO subscriptions VALUES
    ('s-2111', 'c-1011', 'TV Plus', 1500, 'active', '2026-12-03', NULL),
    ('s-2107', 'c-1007', 'TV Plus', 1500, 'active', '2026-12-03', NULL),
    ('s-2121', 'c-1021', 'Fiber 100', 2900, 'cancelled', '2026-06-03', '2026-05-20');

-- Four months of ordinary bills: ch-2001-2611 is s-2001's of November 2026.
INSERT INTO charges (id, customer_id, subscription_id, what, cents, day)
    SELECT 'ch-' || substr(s.id, 3) || '-26' || m.month, s.customer_id, s.id,
           s.plan || ', month 2026-' || m.month, s.cents, '2026-' || m.month || '-03'
    FROM subscriptions s, (SELECT '08' AS month UNION SELECT '09' UNION SELECT '10' UNION SELECT '11') m
    WHERE s.id <> 's-2121' AND '2026-' || m.month || '-03' >= (SELECT since FROM customers WHERE id = s.customer_id);

-- And what is out of the ordinary.
INSERT INTO charges (id, customer_id, subscription_id, what, cents, day) VALUES
    ('ch-9001', 'c-1001', 's-2001', 'Fiber 500, month 2026-11', 4900, '2026-11-03'),
    ('ch-9018', 'c-1018', 's-2018', 'Fiber 500, month 2026-11', 4900, '2026-11-03'),
    ('ch-9023', 'c-1023', 's-2023', 'Fiber 500, month 2026-11', 4900, '2026-11-03'),
    ('ch-9024', 'c-1024', 's-2024', 'Fiber 500, month 2026-11', 4900, '2026-11-03'),
    ('ch-9027', 'c-1027', 's-2027', 'Fiber 500, month 2026-11', 4900, '2026-11-03'),
    ('ch-9008', 'c-1008', NULL, 'Late fee', 1250, '2026-10-20'),
    ('ch-9013', 'c-1013', NULL, 'Late fee', 1250, '2026-11-10'),
    ('ch-9025', 'c-1025', NULL, 'Late fee', 1250, '2026-11-10'),
    ('ch-9010', 'c-1010', NULL, 'Installation by a technician', 24000, '2026-10-12'),
    ('ch-9016', 'c-1016', NULL, 'Router Lumen 3, bought', 8900, '2026-09-15'),
    ('ch-9014', 'c-1014', NULL, 'Film rental', 499, '2026-11-15'),
    ('ch-9029', 'c-1029', NULL, 'Film rental', 499, '2026-11-01'),
    ('ch-9030', 'c-1030', NULL, 'Film rental', 499, '2026-11-12');
UPDATE charges SET status = 'failed' WHERE id = 'ch-2017-2611';

INSERT INTO refunds VALUES
    ('ch-9008', 1250, 'goodwill', '2026-10-27'),
    ('ch-2015-2609', 6900, 'fault in the network', '2026-09-19');

INSERT INTO devices (id, customer_id, kind, model, firmware)
    SELECT replace(id, 'c-1', 'd-4'), id, 'router', 'Lumen 3', '3.8.1' FROM customers WHERE status <> 'closed';
INSERT INTO devices (id, customer_id, kind, model, firmware) VALUES
    ('d-4106', 'c-1006', 'mesh point', 'Lumen Air', '1.4.0'),
    ('d-4107', 'c-1007', 'set-top box', 'Vista 2', '7.0.2'),
    ('d-4111', 'c-1011', 'set-top box', 'Vista 2', '7.0.2'),
    ('d-4129', 'c-1029', 'mesh point', 'Lumen Air', '1.4.0');
UPDATE devices SET model = 'Lumen 2', firmware = '2.9.7' WHERE id IN ('d-4004', 'd-4015', 'd-4022', 'd-4028');
-- Hung: a reboot helps those whose settings are sound.
UPDATE devices SET online = 0, uptime_hours = 2160 WHERE id IN ('d-4002', 'd-4003', 'd-4023', 'd-4026');
UPDATE devices SET bad_settings = 1 WHERE id = 'd-4003';
-- Broken.
UPDATE devices SET online = 0, self_test = 'failed', uptime_hours = 0
    WHERE id IN ('d-4004', 'd-4016', 'd-4022', 'd-4028');
-- No line: the cable at home, or all of Leiden.
UPDATE devices SET online = 0, link = 0 WHERE id IN ('d-4005', 'd-4019');
-- Working badly.
UPDATE devices SET signal_dbm = -83 WHERE id IN ('d-4106', 'd-4129');
UPDATE devices SET celsius = 81 WHERE id = 'd-4107';
UPDATE devices SET loss_percent = 9.5, bad_settings = 1 WHERE id = 'd-4020';

INSERT INTO help VALUES
    ('opening hours', 'open opened opening hours closing', 'We are here every day from 08:00 to 20:00, on Sundays from 10:00.'),
    ('payment', 'pay paying payment iban direct debit card', 'Bills are paid by direct debit or by card, on the 3rd of each month.'),
    ('password', 'password login sign-in wifi key', 'A new password: account page, Security, Change password. The WiFi key is printed beneath the router.'),
    ('moving', 'move moving address house relocate', 'Tell us the new address two weeks before you move; the contract moves with you.'),
    ('notice', 'notice contract term minimum', 'A contract can be ended at any time; it runs until the end of the month that is paid.');
