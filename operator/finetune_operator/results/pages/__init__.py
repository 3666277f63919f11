"""HTML pages: one file each, without scripts and without anything that a browser would request. Pure.

``document`` renders a template of ``templates/`` below the common frame ``document.html.j2``; ``chart`` and
``intervals`` find the places of what the macros of ``charts.html.j2`` draw. The content of a page, as texts and
numbers, comes from the command that writes it.
"""
