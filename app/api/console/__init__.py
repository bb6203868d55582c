"""The console: pages that the server makes, for people who are signed in.

`door` lets in and is what all pages stand on, `words` writes numbers and decisions; every other module is one part of
the console, called as its pages are. Pages read through the services that the API reads through, load nothing from
elsewhere, can be read without scripts, and change nothing on GET.
"""
