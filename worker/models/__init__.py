"""One short file per architecture, built from shared layers."""
