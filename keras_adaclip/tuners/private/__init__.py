"""A search whose best run may be released (Papernot and Steinke 2022)."""
