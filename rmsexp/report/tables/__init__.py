"""The tables: ``table`` returns numbers, ``readable`` the table's cells as text.

``formats`` has the number formats that tables share, and ``markup`` writes a table of text as Markdown, and numbers
as CSV.
"""
