"""The work of verifiable rewards; each module's `perform` runs in a confined process, once a sample."""
