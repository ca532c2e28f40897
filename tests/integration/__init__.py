"""Packages of tests, and folders of tests that share nothing."""
