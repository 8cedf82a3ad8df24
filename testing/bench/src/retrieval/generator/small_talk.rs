//! What is said between the topics: greetings, the day, the weather, and the assistant's courtesies. In the
//! form of [`super::topics`]; the sentences are put together from word lists, so that few of them repeat.

pub(super) const SMALL_TALK: &str = "
greeting: Good morning, how are you?; Hello again; Hi, it is me; Good evening!; Hey, got a minute?; Hi there;
  Morning! How is it going?; Hello, I am back; Good afternoon, still awake?; Hey you
welcome: Hello! How can I help you today?; Good to hear from you, how are you?; Hi! What is on your mind?;
  Welcome back, how was your day?; Good morning! Did you sleep well?; Hello, what is new with you?
mood: {Mood}, to be honest; I am {mood} today; {Mood}, and you?; Could be worse, only {mood};
  Oh, {mood} as always
day: The {chore} took me half the day; There was {weather} all morning;
  I had {meal} and {drink} in the {spot}; The {gadget} is playing up again; I left my {item} in the {spot};
  {Stranger} {action} in the {spot} today; I watched a {programme} about {subject}, {verdict};
  Still no time for the {chore}; Everybody talks about {topic};
  I slept badly, the {gadget} hummed all night; Nothing but {weather} and {chore} this week;
  {Stranger} {action}; At the {spot} they only talked about {topic}; My {item} broke in the {weather};
  The {programme} was {verdict}; I should buy a new {gadget} before the {season};
  {Weekday} was long, I only had {meal}; I feel {mood} since {weekday};
  On the way to the {spot} {stranger} {action}; I promised myself to do the {chore} before {weekday}
answer: [Oh|Well|Ah], that is {praise}; That sounds like {pity}; I see, {weather} does that to people;
  A quiet evening with {drink} may help; I hope {weekday} will be calmer; {Topic} can wait until {weekday};
  Perhaps the {chore} is less work than it looks; A {programme} is a good way to switch off;
  It happens to the best of us; That made me smile; Thank you for telling me; Take your time; I understand;
  You could put the {item} next to the door; Would you like a reminder for the {chore}?;
  I am glad you told me; In {season} many people feel {mood};
  There are good articles on {topic}, if you like; Tell me more whenever you like
turn: By the way:; Oh, and before I forget:; Something else:; Guess what!; Speaking of news:; Anyway.; Right.;
  I meant to tell you:; On another note:; You know what?; Listen:; Now for something different:
back: Do you remember?; As you know:; You may recall:; Again about that:; A short update:; In other news:
more: Anyway; That is life; I am not complaining; We will see; Well; Such is the week; Who knows;
  It is what it is
pause: Sorry, the door; One moment, the phone; Wait, somebody is ringing; Hold on, the soup
resume: Where were we?; Of course, take your time; No hurry; I am still here
return: Back again. You asked:; There I am. So:; Now, where was I. Right,; To answer you:
bye: I have to run, talk soon; That is all for today; Bye for now; Good night; Off to bed;
  See you tomorrow, thanks
farewell: Goodbye, take care!; Sleep well!; Until next time; Have a good one;
  Bye, and good luck with the {chore}
idle: Good morning, how are you?; Thanks a lot, that was kind; Hello, {weather} again today;
  I am {mood}, how about you?; What shall we do today?; Hi, I just wanted to chat a bit;
  Just had {meal} and {drink}; The {chore} is waiting, I am {mood}; Can you tell me a joke?;
  Good night, see you tomorrow; Ugh, {weather}; I am {mood} and it is only {weekday};
  Okay, sounds good to me; No idea what to do on {weekday}, I am {mood}
";
