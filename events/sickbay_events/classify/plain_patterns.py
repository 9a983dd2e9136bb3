"""Sentences that mean the same whatever code stands beside them, as data: read before a provider's own rows."""

from __future__ import annotations

from typing import Final

from .rules import OVER_LIMIT, Rule, rule

FIRST: Final[tuple[Rule, ...]] = (
    # Words so plain that no code beside them means anything else: read before a family's own rows.
    rule(
        # What is left pays for a shorter answer: the credential still works.
        "bad_request",
        says="""
        can only afford | fewer max_tokens | lower max_tokens | reduce max_tokens | lower your max_tokens
        reduce your max_tokens | fewer tokens & afford""",
        never="only afford 0 | only afford -",
    ),
    rule(
        # It will not clear: the model has no tier without payment at all.
        "permission_model",
        says="""
        doesn't have a free quota tier | does not have a free quota tier | doesn't have a free tier
        does not have a free tier | no free tier | not available on the free tier | not available in the free tier
        is not part of the free tier""",
        at=(402, 403, 429),
    ),
    rule("context_length", says=OVER_LIMIT, at=(200, 400, 413, 422, 429)),
    rule(
        # A firewall does not know this machine's address, or there is no public door: a fact about the way.
        "wrong_endpoint",
        says="""
        virtual network | firewall rule | network firewall | firewall policy | blocked by & firewall
        public access is disabled | public network access is disabled | public network access & disabled
        private endpoint & configure | vpcservicecontrols | vpc service controls
        not in the allowed range & network | network & ip & not allowed""",
        at=(401, 403),
    ),
    rule(
        "overloaded",
        says="""
        requires more system memory | insufficient system resources | memory to load | memory & load the model
        worker & request limit reached | workers & request limit reached""",
        never="does not exist",
    ),
)
