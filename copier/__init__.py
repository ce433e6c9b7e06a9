"""From the journals into the data logs: `plan` decides, `apply` copies, `copier` runs both, `reclaim` gives space back.

docs/copying.md tells it in one piece.
"""
