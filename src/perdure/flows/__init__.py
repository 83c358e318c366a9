"""Declarative flows: documents, expressions, the compiled graph, and the decider that runs it.

text --source--> document --compile--> Body --decider--> commands
                               ^
          expressions and templates (expr, template)
"""
