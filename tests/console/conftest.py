"""A bank whose console is open, and browsers to look at it with."""

import os
import shutil
from contextlib import asynccontextmanager

import httpx
import pytest
from playwright.async_api import async_playwright, expect

from tests.console.world import PASSWORD, PATIENCE, world

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture
async def bank(tmp_path):
    async with world(tmp_path) as opened:
        yield opened


# --- without a browser ----------------------------------------------------------------------------


@asynccontextmanager
async def client_of(bank, name=None, **options):
    """An HTTP client, signed in as a user where a name is given."""
    async with httpx.AsyncClient(
        base_url=bank.url, timeout=PATIENCE, verify=False, **options
    ) as client:
        if name is not None:
            told = {"name": name, "password": PASSWORD}
            answer = await client.post("/sign-in", data=told)
            assert answer.status_code == 303, answer.text
        yield client


@pytest.fixture
async def ann(bank):
    async with client_of(bank, "ann") as client:
        yield client


# --- with one -------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
async def browser():
    found = os.environ.get("COUNTERSEAL_TEST_BROWSER") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if found is None:
        pytest.fail("No Chromium on PATH. Fix: `apt-get install chromium`.")
    async with async_playwright() as playwright:
        running = await playwright.chromium.launch(executable_path=found, args=OPTIONS)
        yield running
        await running.close()


@pytest.fixture
async def visitor(browser, bank):
    """`await visitor("ann", **options)` is a page in a browser of their own, signed in."""
    contexts = []

    async def visitor(name=None, **options):
        context = await browser.new_context(base_url=bank.url, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        page = await context.new_page()
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on(
            "console",
            lambda said: page.faults.append(said.text) if "Content Security" in said.text else None,
        )
        if name is not None:  # the form itself is for tests of signing in
            told = {"name": name, "password": PASSWORD}
            await context.request.post("/sign-in", form=told, max_redirects=0)
            await page.goto("/")
        return page

    yield visitor
    faults = [fault for context in contexts for page in context.pages for fault in page.faults]
    for context in contexts:
        await context.close()
    assert not faults


async def sign_in(page, name, password=PASSWORD, path="/sign-in"):
    await page.goto(path)
    await page.get_by_label("Name").fill(name)
    await page.get_by_label("Password").fill(password)
    await page.get_by_role("button", name="Sign in").click()
