"""The live dashboard: a local web page over run folders. It only reads; nothing in a run depends on it.

    folders.py      which run folders there are, and which of their files may be opened
    follow.py       files that grow: what is new since the last look
    columns.py      metrics.jsonl as columns, read on demand
    downsample.py   long curves as few points
    samples.py      rollouts/ and validation/: pages, filters, groups of one prompt
    status.py       how a run stands, from its events, its log and the age of its files
    runs.py         one run and all runs: the readers above, kept between requests
    live.py         what changed, as server-sent events
    routes.py       the GET endpoints
    security.py     headers, host check, token
    server.py       the application, its socket, and starting it beside a training run

The page itself is in static/: hand-written modules, no build step, nothing from another host.
"""

from __future__ import annotations
