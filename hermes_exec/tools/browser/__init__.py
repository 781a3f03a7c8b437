"""The browser tools: Chromium in the slot, driven from outside by Playwright's client."""
