"""HTML pages: one file each, without scripts and without anything that a browser would request. Pure.

``document`` renders a template of ``templates/`` below the common frame ``document.html.j2``; ``chart`` and
``intervals`` draw numbers as SVG. The content of a page, as texts and numbers, comes from the command that writes it.

``document`` needs the wheel's extra ``pages``; everything else in the package needs the standard library alone.
"""
