"""Wire models that are not domain values: pages, summaries, token requests. Closed for what comes in, documented for
what goes out.
"""
