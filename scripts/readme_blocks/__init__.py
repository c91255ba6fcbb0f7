"""The texts of the marked blocks in the documents, each computed from the committed records."""
