"""The documentation as a site: what MkDocs is told beside `mkdocs.yml`, by `make docs`."""
