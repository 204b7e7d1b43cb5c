// Keeps the newest words in view, unless the reader has scrolled away from them.

const NEAR = 48;
const UPWARDS = new Set(["ArrowUp", "Home", "PageUp"]);

export class Scroller {
  constructor(element, toEndButton) {
    this.element = element;
    this.button = toEndButton;
    this.following = true;
    this.last = 0;
    this.touched = 0;
    element.addEventListener("scroll", () => this.look(), { passive: true });
    // Browsers scroll by degrees, and a word that comes before the first of them would undo it:
    // who sets out upwards is let go at once.
    element.addEventListener("keydown", ({ key, shiftKey }) => {
      if (UPWARDS.has(key) || (key === " " && shiftKey)) this.letGo();
    });
    element.addEventListener("wheel", ({ deltaY }) => deltaY < 0 && this.letGo(), { passive: true });
    element.addEventListener("touchstart", ({ touches }) => (this.touched = touches[0].clientY), { passive: true });
    element.addEventListener("touchmove", ({ touches }) => touches[0].clientY > this.touched && this.letGo(), {
      passive: true,
    });
    toEndButton.addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.follow()).observe(element);
  }

  look() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    const left = scrollHeight - scrollTop - clientHeight;
    // The first step upwards counts, however small: text that grows must not pull the reader back.
    if (scrollTop < this.last && left > 1) this.following = false;
    else if (scrollTop > this.last && left < NEAR) this.following = true;
    this.last = scrollTop;
    this.button.hidden = left < NEAR;
  }

  letGo() {
    if (this.element.scrollTop > 0) this.following = false;
  }

  /** After the text has grown. */
  follow() {
    this.look();
    if (this.following) this.element.scrollTop = this.element.scrollHeight;
    this.look();
  }

  toEnd() {
    this.following = true;
    this.last = this.element.scrollTop;
    this.follow();
  }
}
