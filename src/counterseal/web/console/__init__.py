"""The console: where people decide and look. Server-rendered pages over the desk.

A page works without JavaScript; what scripts add is that it stays current, and keys.

To add a page:

1. A module beside `approvals` with `routes(house) -> list[Route]`: `house.get(path, handler)` and
   `house.post(path, handler)`. Whoever gets to a handler is signed in; a form has been checked
   (origin, session, size). In `app._ROOMS` it gets its place in the header.
2. A handler takes a `Visit`. It asks `visit.view`, which knows tenant and roles, and returns
   `await visit.render("page.html", title=…, shows="/v1/…", …)`, or after a form `visit.go(path)`.
   `visit.asked(name)` is a parameter of the URL, `visit.said(name)` a field of the form. NotThere,
   NotAllowed, RegistryError and StoreError become pages by themselves; `with understood():` around
   what reads cursors and times; `Problem(status, message)` for everything else.
3. A template extends `base.html` and fills `block main`. Macros are in `macros.html`:
   `{% import "macros.html" as ui with context %}`. Every form has `{{ ui.csrf() }}`. Addresses are
   made by `address("calls", call_id, tab="events")`, which quotes; files by `asset("main.js")`.
4. Values are text: never mark one as safe. `{{ value }}` is escaped, on one line, with invisible
   characters spelt out; `{{ text|lines }}` inside a `pre` keeps line breaks; `ui.json(value)` shows
   JSON, `{{ parts|said }}` pieces of an outline. No `style` and no `on…` attributes: browsers are
   told to ignore them.
5. What should stay current has an `id` and `data-live="approvals"` (topics, by spaces: `approvals`,
   `kills`, `record` for whatever is put on record; others go into `live.marks_of`). It is replaced
   when the topic changes, unless the new one has the same `data-live-key`: for forms that somebody
   may be filling in, and for what is of one call among many.
6. A test in `tests/console` opens it at 380 and 1600 pixels, in light and dark, without JavaScript,
   and has axe look at it: add it to the list of pages in `test_accessibility.py`.
"""

from counterseal.web.console.app import console_routes
from counterseal.web.console.live import Broker, marks_of

__all__ = ["Broker", "console_routes", "marks_of"]
