"""Pictures of requests and of a fleet: pure functions from what happened to SVG and to mermaid's text.

Everything here is drawn with classes and without a colour: the style sheet of the page gives them, light and
dark. Texts are strangers': `svg` writes them as text nodes, `mermaid` as character codes.
"""
