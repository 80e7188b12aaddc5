"""The paper's studies, tables and audits: a user of the package `pacpfl`."""
