"""The site: pages in Markdown (MyST), and the interface in Python from docstrings. ``make docs`` builds it."""

import os

from docutils import nodes
from sphinx import addnodes

from rmsexp import __version__

project = "rmsexp"
version = release = __version__
html_title = "rmsexp"
html_theme = "furo"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "results/README.md"]

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3  # as on GitHub

autodoc_default_options = {"members": True, "show-inheritance": True, "exclude-members": "__init__,__new__"}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
suppress_warnings = ["ref.python"]  # names of attributes that several classes have


def name_files_of_repository(app, doctree):
    """Write the path in place of each link to a file or folder of the repository that is not a page of the site."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        target = link.get("reftarget", "").partition("#")[0]
        page = link.get("refdomain") == "doc"
        path = app.srcdir / f"{target}.md" if page else (app.srcdir / app.env.docname).parent / target
        name = os.path.relpath(path, app.srcdir)
        if target and target not in app.env.found_docs and not name.startswith("..") and path.exists():
            words = [*link.children, nodes.Text(" ("), nodes.literal(text=name), nodes.Text(")")]
            link.replace_self(nodes.inline("", "", *words))


def leave_out_deviations(app, what, name, obj, options, lines):
    """Leave out the deviations from the authors' code, which docs/paper.md lists."""
    first = next((i for i, line in enumerate(lines) if line.startswith("Deviation:")), len(lines))
    del lines[first:]


def setup(app):
    app.connect("autodoc-process-docstring", leave_out_deviations)
    app.connect("doctree-read", name_files_of_repository)
