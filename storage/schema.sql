-- Made by `python -m tuner_storage.schema > storage/schema.sql`; tuner_alembic_version is kept by Alembic.

-- sqlite

CREATE TABLE tuner_study (
    id INTEGER NOT NULL,
    name VARCHAR(512) NOT NULL,
    spec JSON NOT NULL,
    provenance JSON NOT NULL,
    created_at DATETIME NOT NULL,
    conclusion JSON,
    stop_asked_at DATETIME,
    CONSTRAINT pk_tuner_study PRIMARY KEY (id),
    CONSTRAINT uq_tuner_study_name UNIQUE (name)
);

CREATE TABLE tuner_trace (
    id INTEGER NOT NULL,
    "key" TEXT NOT NULL,
    path_key TEXT NOT NULL,
    header JSON NOT NULL,
    depth INTEGER NOT NULL,
    data BLOB NOT NULL,
    created_at DATETIME NOT NULL,
    CONSTRAINT pk_tuner_trace PRIMARY KEY (id),
    CONSTRAINT uq_tuner_trace_key UNIQUE ("key")
);

CREATE INDEX ix_tuner_trace_path_key ON tuner_trace (path_key);

CREATE TABLE tuner_log (
    study_id INTEGER NOT NULL,
    kind VARCHAR(16) NOT NULL,
    "key" TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    label TEXT NOT NULL,
    node TEXT,
    log BLOB NOT NULL,
    ended_at DATETIME NOT NULL,
    CONSTRAINT pk_tuner_log PRIMARY KEY (study_id, kind, "key", attempt),
    CONSTRAINT fk_tuner_log_study_id FOREIGN KEY(study_id) REFERENCES tuner_study (id) ON DELETE CASCADE
);

CREATE TABLE tuner_pareto (
    study_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    speculation JSON NOT NULL,
    objective_values JSON NOT NULL,
    trial_number INTEGER,
    is_measured BOOLEAN NOT NULL,
    probability DOUBLE,
    CONSTRAINT pk_tuner_pareto PRIMARY KEY (study_id, position),
    CONSTRAINT fk_tuner_pareto_study_id FOREIGN KEY(study_id) REFERENCES tuner_study (id) ON DELETE CASCADE
);

CREATE TABLE tuner_stage (
    id INTEGER NOT NULL,
    study_id INTEGER NOT NULL,
    kind VARCHAR(16) NOT NULL,
    "key" TEXT NOT NULL,
    label TEXT DEFAULT '' NOT NULL,
    attempt INTEGER NOT NULL,
    node TEXT,
    state VARCHAR(16) NOT NULL,
    started_at DATETIME NOT NULL,
    ended_at DATETIME,
    result BLOB,
    error_type TEXT,
    error TEXT,
    CONSTRAINT pk_tuner_stage PRIMARY KEY (id),
    CONSTRAINT uq_tuner_stage_study_id_kind_key UNIQUE (study_id, kind, "key"),
    CONSTRAINT fk_tuner_stage_study_id FOREIGN KEY(study_id) REFERENCES tuner_study (id) ON DELETE CASCADE
);

CREATE INDEX ix_tuner_stage_key_kind ON tuner_stage ("key", kind);

CREATE TABLE tuner_trial (
    study_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    speculation JSON NOT NULL,
    state VARCHAR(16) NOT NULL,
    objective_values JSON NOT NULL,
    metrics JSON NOT NULL,
    predicted JSON NOT NULL,
    duplicate_of INTEGER,
    error_type TEXT,
    error TEXT,
    created_at DATETIME NOT NULL,
    ended_at DATETIME,
    CONSTRAINT pk_tuner_trial PRIMARY KEY (study_id, number),
    CONSTRAINT fk_tuner_trial_study_id FOREIGN KEY(study_id) REFERENCES tuner_study (id) ON DELETE CASCADE
);

-- postgresql

CREATE TABLE tuner_study (
    id SERIAL NOT NULL,
    name VARCHAR(512) NOT NULL,
    spec JSON NOT NULL,
    provenance JSON NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    conclusion JSON,
    stop_asked_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_tuner_study PRIMARY KEY (id),
    CONSTRAINT uq_tuner_study_name UNIQUE (name)
);

CREATE TABLE tuner_trace (
    id SERIAL NOT NULL,
    key TEXT NOT NULL,
    path_key TEXT NOT NULL,
    header JSON NOT NULL,
    depth INTEGER NOT NULL,
    data BYTEA NOT NULL,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_tuner_trace PRIMARY KEY (id),
    CONSTRAINT uq_tuner_trace_key UNIQUE (key)
);

CREATE INDEX ix_tuner_trace_path_key ON tuner_trace (path_key);

CREATE TABLE tuner_log (
    study_id INTEGER NOT NULL,
    kind VARCHAR(16) NOT NULL,
    key TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    label TEXT NOT NULL,
    node TEXT,
    log BYTEA NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE NOT NULL,
    CONSTRAINT pk_tuner_log PRIMARY KEY (study_id, kind, key, attempt),
    CONSTRAINT fk_tuner_log_study_id FOREIGN KEY(study_id) REFERENCES tuner_study (id) ON DELETE CASCADE
);

CREATE TABLE tuner_pareto (
    study_id INTEGER NOT NULL,
    position INTEGER NOT NULL,
    speculation JSON NOT NULL,
    objective_values JSON NOT NULL,
    trial_number INTEGER,
    is_measured BOOLEAN NOT NULL,
    probability DOUBLE PRECISION,
    CONSTRAINT pk_tuner_pareto PRIMARY KEY (study_id, position),
    CONSTRAINT fk_tuner_pareto_study_id FOREIGN KEY(study_id) REFERENCES tuner_study (id) ON DELETE CASCADE
);

CREATE TABLE tuner_stage (
    id SERIAL NOT NULL,
    study_id INTEGER NOT NULL,
    kind VARCHAR(16) NOT NULL,
    key TEXT NOT NULL,
    label TEXT DEFAULT '' NOT NULL,
    attempt INTEGER NOT NULL,
    node TEXT,
    state VARCHAR(16) NOT NULL,
    started_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    result BYTEA,
    error_type TEXT,
    error TEXT,
    CONSTRAINT pk_tuner_stage PRIMARY KEY (id),
    CONSTRAINT uq_tuner_stage_study_id_kind_key UNIQUE (study_id, kind, key),
    CONSTRAINT fk_tuner_stage_study_id FOREIGN KEY(study_id) REFERENCES tuner_study (id) ON DELETE CASCADE
);

CREATE INDEX ix_tuner_stage_key_kind ON tuner_stage (key, kind);

CREATE TABLE tuner_trial (
    study_id INTEGER NOT NULL,
    number INTEGER NOT NULL,
    speculation JSON NOT NULL,
    state VARCHAR(16) NOT NULL,
    objective_values JSON NOT NULL,
    metrics JSON NOT NULL,
    predicted JSON NOT NULL,
    duplicate_of INTEGER,
    error_type TEXT,
    error TEXT,
    created_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT pk_tuner_trial PRIMARY KEY (study_id, number),
    CONSTRAINT fk_tuner_trial_study_id FOREIGN KEY(study_id) REFERENCES tuner_study (id) ON DELETE CASCADE
);
