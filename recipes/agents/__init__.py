"""Agents that come with Headrace. They share only a row and a reward with it."""
