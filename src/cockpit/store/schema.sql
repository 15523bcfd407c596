-- The file of one run, run.db (SQLite). docs/store.md explains it with examples for the sqlite3 shell.
--
-- Every number is in network byte order (big-endian), so that the shell's ieee754_from_blob() can read it.
-- Points of a series lie, in the order of writing, in: chunk (by id), step_row (by id), array and block (by id).
-- Where several of them have the same step, the one written last counts.

PRAGMA application_id = 0x434B5054; -- "CKPT": this is a run of Cockpit
PRAGMA user_version = 1;            -- the version of this schema; a reader refuses a newer one

-- One row: what changes with every transaction.
CREATE TABLE state (
  id        INTEGER PRIMARY KEY CHECK (id = 1),
  sequence  INTEGER NOT NULL,          -- grows by one with every transaction that changes what a reader sees
  heartbeat REAL NOT NULL              -- Unix time at which the writing process was last known to be alive
);
INSERT INTO state VALUES (1, 0, 0);

-- What is known about the run as a whole. The writer itself keeps started and ended (Unix time; ended is null while
-- the run is open) and writer (process and host).
CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL                  -- JSON
) WITHOUT ROWID;

-- A series: the values of one quantity for the model (scope '') or for one parameter (scope = its name).
CREATE TABLE series (
  id    INTEGER PRIMARY KEY,           -- in the order of first appearance
  name  TEXT NOT NULL,                 -- quantity, for example grad_norm
  scope TEXT NOT NULL,
  kind  TEXT NOT NULL CHECK (kind IN ('number', 'array')), -- array: its newer points are in array and block
  UNIQUE (name, scope)
);

-- Which series a step_row or a block holds, in order: a JSON list of series ids.
CREATE TABLE layout (
  id     INTEGER PRIMARY KEY,
  series TEXT NOT NULL UNIQUE
);

-- The newest numbers, one row for all series of a step: fast to write. Moved into chunks every few hundred rows.
CREATE TABLE step_row (
  id     INTEGER PRIMARY KEY,          -- order of writing
  step   INTEGER NOT NULL,
  layout INTEGER NOT NULL REFERENCES layout (id),
  data   BLOB NOT NULL,                -- float64, one for each series of the layout
  status TEXT                          -- NULL: all ok; else JSON {status: [positions in the layout, from 0, or [first, last]]}
);

-- Older numbers, one row for hundreds or thousands of points of one series: fast to read.
CREATE TABLE chunk (
  id         INTEGER PRIMARY KEY,      -- order of writing
  series     INTEGER NOT NULL REFERENCES series (id),
  first_step INTEGER NOT NULL,
  last_step  INTEGER NOT NULL,
  count      INTEGER NOT NULL,
  steps      BLOB,                     -- NULL: evenly spaced from first_step to last_step; else int64, ascending
  data       BLOB NOT NULL,            -- float64
  status     TEXT                      -- NULL: all ok; else JSON {status: [positions, from 0, or [first, last]]}
);
CREATE INDEX chunk_series ON chunk (series, id, last_step, count);

-- Bin edges, shared by the histograms that use them.
CREATE TABLE edges (
  id   INTEGER PRIMARY KEY,
  data BLOB NOT NULL UNIQUE            -- float64
);

-- Arrays and histograms, one row each. Also the numbers (gaps) of a series whose other values are arrays.
CREATE TABLE array (
  id        INTEGER PRIMARY KEY,       -- order of writing, in one sequence with block
  series    INTEGER NOT NULL REFERENCES series (id),
  step      INTEGER NOT NULL,
  kind      TEXT NOT NULL CHECK (kind IN ('number', 'array', 'histogram')),
  dtype     TEXT NOT NULL,             -- of data, as NumPy writes it: '>f8' is float64, '>i8' is int64
  shape     TEXT NOT NULL,             -- JSON list
  data      BLOB NOT NULL,             -- zlib stream of the elements (a histogram's counts), last axis fastest
  edges     INTEGER REFERENCES edges (id), -- histogram: edges of axis 0
  edges_2   INTEGER REFERENCES edges (id), -- histogram with two axes: edges of axis 1
  underflow INTEGER,                   -- histogram: how many values were below edges, …
  overflow  INTEGER,                   -- … above them, …
  nan       INTEGER,                   -- … not a number, …
  inf       INTEGER,                   -- … infinite
  status    TEXT NOT NULL DEFAULT 'ok'
);
CREATE INDEX array_series ON array (series, step);

-- Histograms of many series (all parameters) at one step, with the same edges.
CREATE TABLE block (
  id      INTEGER PRIMARY KEY,         -- order of writing, in one sequence with array
  layout  INTEGER NOT NULL REFERENCES layout (id),
  step    INTEGER NOT NULL,
  dtype   TEXT NOT NULL,               -- of data, as NumPy writes it: '>u2' is uint16
  shape   TEXT NOT NULL,               -- JSON list: how many series, then the shape of each one's counts
  data    BLOB NOT NULL,               -- zlib stream of the counts, series after series
  edges   INTEGER NOT NULL REFERENCES edges (id),
  edges_2 INTEGER REFERENCES edges (id),
  outside BLOB NOT NULL,               -- int64: underflow, overflow, nan, inf of every series
  status  TEXT                         -- NULL: all ok; else as in step_row
);
CREATE INDEX block_layout ON block (layout, step);

-- What happened: gaps, skipped steps, lost records, a rewind.
CREATE TABLE event (
  id    INTEGER PRIMARY KEY,
  step  INTEGER NOT NULL,
  time  REAL NOT NULL,                 -- Unix time
  kind  TEXT NOT NULL,
  text  TEXT NOT NULL,
  scope TEXT NOT NULL,
  data  TEXT NOT NULL                  -- JSON object
);
