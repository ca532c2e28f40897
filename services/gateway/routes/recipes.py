"""`/v1/recipes`: the run configs that come with Headrace."""

from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field

from recipes import Recipe, UnknownRecipe, find_recipe, list_recipes
from services.gateway.paging import Cursor, Limit, Next, page_of
from services.http import Problem, responses

router = APIRouter(prefix="/v1/recipes", tags=["recipes"])


class RecipeModel(BaseModel):
    """One recipe."""

    name: str = Field(description="What `recipe` in `POST /v1/runs` takes.")
    when: str = Field(description="When to use it.")
    text: str = Field(description="The commented YAML.")
    config: dict[str, Any] = Field(description="What the YAML says; not yet a whole run config.")

    @classmethod
    def of(cls, recipe: Recipe) -> "RecipeModel":
        """The API's form of `recipe`."""
        return cls(name=recipe.name, when=recipe.when, text=recipe.text, config=recipe.config)


class RecipeList(BaseModel):
    """A page of recipes."""

    recipes: list[RecipeModel] = Field(description="By name.")
    next: Next


@router.get("", operation_id="recipes_list", summary="List recipes")
async def list_all(limit: Limit = 200, cursor: Cursor = None) -> RecipeList:
    """All recipes, each with when to use it, page by page."""
    recipes = sorted(list_recipes(), key=lambda recipe: recipe.name)
    page, following = page_of(recipes, lambda recipe: (recipe.name,), limit, cursor)
    return RecipeList(recipes=[RecipeModel.of(recipe) for recipe in page], next=following)


@router.get(
    "/{name}",
    operation_id="recipes_get",
    summary="Show a recipe",
    responses=responses({404: "There is no such recipe; `detail` names the nearest"}),
)
async def show(name: Annotated[str, Path(description="Its name.")]) -> RecipeModel:
    """One recipe with its commented YAML, to copy and change."""
    try:
        return RecipeModel.of(find_recipe(name))
    except UnknownRecipe as error:
        raise Problem(HTTPStatus.NOT_FOUND, str(error)) from None
