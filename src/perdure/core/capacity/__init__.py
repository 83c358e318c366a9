"""How much a load needs: servers, workers, a database, and more than one database. Pure arithmetic over measured costs.

Laws:

1. Every figure of a plan is a line that shows its formula and the numbers in it; a reader can repeat it on paper.
2. Costs are measured (`perdure bench costs`), never guessed. What is assumed instead is a field of `Assumptions`, with its value shown.
3. The plan is linear in the load but where it says otherwise: machines are whole, and spares are added.
"""
