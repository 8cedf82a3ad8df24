//! What people talk about: the topics of the generated conversations, each with its facts.
//!
//! Every line has alternatives, separated by semicolons; `[a|b]` is a choice and `{slot}` a slot. A topic has
//! a *thing*, which tells several of its kind apart, and lines of the user that open it (`open`, with the day
//! of its event in `when`), go on without a fact (`chat`) and come back to it (`again`); lines of the
//! assistant (`react`); lines that use its words about something else (`noise`); and its event after `did`
//! (`did`). A `fact` has a value, lines that tell it, questions of the assistant with the user's replies, the
//! user's later questions (`q`), and the same in other words (`para`). `update` tells a value that replaces
//! the one before.

pub(super) const TOPICS: &str = "
topic course
thing: pottery; fencing; life drawing; beekeeping; welding; Portuguese; sign language; salsa;
  bookbinding; upholstery
open: {Who} finally signed up for {a thing} course, the first evening was {when};
  {A thing} course! {Who} began {when}
react: {Thing}, how {praise}; A new skill is always {praise}; Courses like that fill up quickly
chat: {Their} fingers still hurt from it; Half of the group never did anything like it;
  {They} had to buy an apron
again: {Who} went to the {thing} course again today; Homework for the {thing} course took {Whom} all Sunday
noise: The paper had a whole page about {thing}; Somebody at work wants to give evening classes
did: start the {thing} course; begin with {thing}
fact {town}
tell: It is all the way out in {value}, so there is a train to catch;
  The group meets in {value} of all places
ask: Is it close by?; How far is it to get there?
reply: No, it is in {value}; {value}, an hour each way; Over in {value}, sadly
q: In which town is {whose} {thing} course?; Where does {whose} {thing} course take place?
para: Which place does {who} have to travel to for the {thing} lessons?; Where are the {thing} classes held?
update: They lost the room, so everybody goes to {value} now; It moved, from now on it is in {value}
fact a {profession}
tell: The one who runs it is {value}, very patient; It is led by {value}
ask: Who is teaching it?; What is the instructor like?
reply: Oh, {value}; You will laugh, {value}
q: What is the profession of the teacher of {whose} {thing} course?; Who teaches {whose} {thing} course?
para: What does the person who instructs {whom} in {thing} do for a living?
fact {number} euros
tell: {value} for ten evenings, I find that fair; It was {value}, materials included
ask: Was it expensive?; What do they charge?
reply: {value}; Only {value}, all in
q: How much did {whose} {thing} course cost?; What did {who} pay for the {thing} course?
para: What was the price of the {thing} lessons?

topic pet
thing: greyhound; tortoise; parrot; beagle; Siamese cat; ferret; pony; rabbit; spaniel; canary; hedgehog;
  terrier
open: There is a new member of the family, {who} took in {a thing} {when};
  {Who} got {a thing} {when}, imagine
react: {A thing}, how {praise}; The first weeks with an animal are tiring;
  Animals change a household completely
chat: It hides behind the sofa; The carpet is already ruined; It woke {whom} at five;
  Everybody wants to stroke it
again: {Whose} {thing} is in good form again; {Whose} {thing} escaped into the yard this morning
noise: A dog barked half the night; {Stranger} walked past with {a thing} on a lead
did: get the {thing}; bring the {thing} home
fact {her name}; {his name}; Biscuit; Pickles; Captain; Waffle; Domino; Pepper; Moses; Turnip; Caruso;
  Nugget
tell: {value} is what it answers to, more or less; The name was there before us, {value}, and it stays
ask: And what do you call it?; Has it got a name yet?
reply: {value}; {value}, after long debates; We settled on {value}
q: What is the name of {whose} {thing}?; What is {whose} {thing} called?
para: What is {whose} pet called?; Which name did {whose} animal get?
fact {shop}; a shelter in {town}; a farm near {town}; a breeder in {town}
tell: It came from {value}, with a box of old blankets; Of all places it turned up at {value}
ask: How did that come about?; Where did you find it?
reply: Through {value}; {value}, pure chance; At {value}, it looked so lost
q: Where did {who} get the {thing}?; Where does {whose} {thing} come from?
para: Where was {whose} pet found?; What is the origin of {whose} animal?
fact sardines; rice cakes; cucumber; old cheese; melon; liver sausage; oat flakes; carrots; boiled eggs;
  blueberries
tell: It does anything for {value}; You would not believe how wild it goes about {value}
ask: What does it eat?; Is it a fussy eater?
reply: {value}, nothing but {value}; It only wants {value}
q: What is the favourite food of {whose} {thing}?; What does {whose} {thing} like to eat?
para: Which treat makes {whose} pet happy?

topic home
thing: flat; cottage; terraced house; studio; loft; bungalow
open: {Who} moved into {a thing} {when}, at last; Boxes everywhere, {who} got the keys for {a thing} {when}
react: Moving is exhausting, but {praise}; A new {thing}, how {praise}; A place of your own is a milestone
chat: The neighbours brought bread and salt; Nobody knows where the kettle is; The stairs creak at night
again: There was a leak in {whose} {thing}; {Who} painted another wall in the {thing}
noise: House prices were on the news again; The people upstairs are moving furniture
did: move into the {thing}; get the keys for the {thing}
fact {town}
tell: It is in {value}, five minutes from the river; You can hear the bells of {value} from the balcony
ask: Which part of the world is that?; Still in the same area?
reply: {value}; No, in {value} now; {value}, believe it or not
q: Where is {whose} {thing}?; In which town is {whose} {thing}?
para: Where does {who} live now?; Which town did {who} settle in?
update: We have been through it again, everything is packed up and gone to {value};
  It did not last, {value} it is now
fact {number} euros
tell: {value} a month, and that is without heating; They want {value} every first of the month
ask: Can one afford that?; Is it dear?
reply: {value} a month; {value}, which is just about possible
q: How much is the rent of {whose} {thing}?; What rent does {who} pay for the {thing}?
para: What does {whose} housing cost each month?
fact {street}
tell: The door plate says {value}, with a brass bell; If you send a card, {value} is enough
ask: What is the address?; Which road is it on?
reply: {value}; Right on {value}, above the baker
q: In which street is {whose} {thing}?; What is the street of {whose} {thing}?
para: What is {whose} postal address?

topic job
thing: warehouse; laboratory; hotel; newspaper; theatre; law firm; shipyard; nursery; brewery; museum;
  call centre
open: {Who} started at a {thing} {when}; The contract is signed, {who} joined a {thing} {when}
react: A {thing} must be a change; Starting somewhere new is {praise}; Congratulations, that is {praise}
chat: The canteen is awful; {They} already got lost twice in the building; The first week was mostly forms
again: Long day at the {thing} for {whom} again; They changed the shifts at the {thing}, {who} said
noise: {Stranger} was fired on the spot, one hears; Everybody talks about job cuts these days
did: start at the {thing}; begin the job at the {thing}
fact {adjective} {noun}
tell: They are called {value}, you may know the logo; It says {value} over the gate
ask: Which one is it?; What is the company?
reply: {value}; {value}, the big one
q: What is the name of the {thing} where {who} works?; Which {thing} does {who} work for?
para: What is the name of {whose} employer?; Who employs {whom} now?
update: That is over, {they} went to the competition, {value}; New badge, new boss: it is {value} now
fact {his name} {surname}; {her name} {surname}
tell: {value} decides everything there; {They} reported to {value}, who shouts
ask: And the boss?; Who is in charge?
reply: {value}, strict but fair; Somebody named {value}
q: Who is {whose} boss at the {thing}?; Who is in charge at the {thing} where {who} works?
para: What is the name of {whose} superior?
fact night shifts; the archive; quality control; the front desk; invoices; the cold store; guided tours;
  complaints
tell: It is mostly {value}, {they} grew fond of that; Since this week it is {value} for {whom}
ask: What does the work consist of?; And the tasks?
reply: {value}, mainly; They put {whom} on {value}
q: What does {who} do at the {thing}?; What is {whose} task at the {thing}?
para: Which duties does {whose} position involve?

topic trip
thing: Peru; Vietnam; Iceland; Morocco; Georgia; Scotland; Sicily; Norway; Nepal; Jordan; Crete; Oman;
  Corsica; Cuba
open: {Who} came back from {thing} {when};
  {Thing} is over, the plane landed {when} and {who} misses it already
react: {Thing} must be {praise}; Travelling clears the head; I hope there are many pictures
chat: The suitcase went missing for two days; The light there is different;
  {They} wanted to go back next {season}
again: {Who} printed the pictures from {thing}; {Whose} sunburn from {thing} still peels
noise: There was a film set in {thing} on television; Flights are getting dearer every {season}
did: come back from {thing}; return from {thing}
fact {his name}; {her name}
tell: {value} came along in the end, with three cameras;
  Without {value} {they} would still be at the airport
ask: All alone?; Who else was there?
reply: No, with {value}; {value} tagged along
q: Who did {who} travel to {thing} with?; Who accompanied {whom} to {thing}?
para: Who was {whose} companion on the journey to {thing}?
fact {a adjective} {noun} guest house; a monastery; a houseboat; a yurt; a lighthouse; a farm;
  a hostel dormitory
tell: They slept at {value}, with a cock for an alarm clock; Nights were at {value}, hard beds but friendly
ask: How was the accommodation?; Hotel or tent?
reply: Neither, {value}; {value}, can you believe it
q: Where did {who} stay in {thing}?; What kind of place did {who} sleep at in {thing}?
para: What was the lodging during {whose} holiday in {thing}?
fact a rug; a drum; a brass lamp; saffron; a woollen hat; a carved spoon; a tea set; a hammock; a mask;
  honey
tell: There is {value} on the sideboard now, from a market; {They} carried {value} through customs
ask: Did anything come home with you?; Any souvenirs?
reply: {value}; Just {value}
q: What did {who} bring back from {thing}?; Which souvenir did {who} buy in {thing}?
para: What does {who} have to remember {thing} by?

topic injury
thing: wrist; knee; ankle; shoulder; elbow; thumb; collarbone; hip; rib; toe
open: Bad luck, {who} broke {a thing} {when};
  {Who} had an accident {when}, the {thing} is in plaster
react: Poor thing, that is {pity}; A broken {thing} needs patience; I hope it is not too painful
chat: Sleeping is impossible; The waiting room was full; {They} cannot even open a jar;
  The tablets make {whom} dizzy
again: {Whose} {thing} still hurts when it rains; The plaster on {whose} {thing} came off
noise: {Stranger} slipped on the ice but got up again; The hospital car park is full day and night
did: break the {thing}; hurt the {thing}
fact off a ladder; down the cellar stairs; from a horse; on wet leaves; over the dog; at trampoline;
  on the tram step
tell: {They} fell {value}, with the shopping in both hands; It was stupid really, {value}
ask: What happened?; How on earth?
reply: {value}; You know {whom}, {value}
q: How did {who} break the {thing}?; How did {whose} accident with the {thing} happen?
para: What caused {whose} fracture?
fact Dr {surname}
tell: {value} screwed it together and is content; {value} says it was a clean break
ask: Is the treatment good?; Who is looking after it?
reply: {value}; {value}, the one with the bow tie
q: Which doctor treated {whose} {thing}?; Who treated {whose} broken {thing}?
para: What is the name of {whose} surgeon?
fact {small number} weeks
tell: No lifting for {value}, they say; It takes {value} until the screws come out
ask: How long will it take?; When is it over?
reply: {value}; {value}, if all goes well
q: How long does {whose} {thing} need to heal?; For how long can {who} not use the {thing}?
para: How many weeks must {who} rest after the fracture?

topic vehicle
thing: Volvo; motorbike; camper van; cargo bike; Fiat; sailing dinghy; tandem; moped; pickup; canoe; Skoda
open: {Who} bought {a thing} {when}, used but pretty;
  Nobody believed it, but {who} owns {a thing}, it was delivered {when}
react: {A thing} is {praise}; I hope it runs for many years; Let me know if you need a checklist for it
chat: It smells of wet rope; {They} polished it every evening; The first ride ended in a ditch;
  It takes up the yard
again: {Whose} {thing} would not start today; {Who} took the {thing} out on Sunday
noise: {Stranger} parked {a thing} across two bays; Petrol went up again
did: buy the {thing}; get the {thing}
fact {colour}
tell: It is {value}, with a dent at the back; {value} all over, you see it from afar
ask: What does it look like?; Pretty?
reply: {value}, rather loud; It is {value}
q: What colour is {whose} {thing}?; Which colour does {whose} {thing} have?
para: What does {whose} {thing} look like?
fact {number}0 euros
tell: In the end it was {value}, after an hour of haggling; {value} changed hands over a beer
ask: A bargain?; What did they want for it?
reply: {value}; {value} in cash
q: How much did {who} pay for the {thing}?; What did {whose} {thing} cost?
para: What was the price of {whose} vehicle?
fact the brakes; the gearbox; a rusty frame; the fuel pump; a cracked hull; the wiring; the lights;
  the left mirror
tell: The trouble is {value}, the workshop shook its head; It has one flaw, {value}
ask: Is it in good shape?; Anything that needs repair?
reply: Only {value}; Sadly {value}
q: What is wrong with {whose} {thing}?; What needs to be repaired on {whose} {thing}?
para: Which defect does {whose} vehicle have?
";

pub(super) const MORE_TOPICS: &str = "
topic party
thing: wedding; silver wedding; birthday party; housewarming; graduation party; christening; farewell party
open: {Whose} {thing} was {when}, what a night; We danced until three, {whose} {thing} was {when}
react: A {thing} like that is {praise}; Celebrations bring everybody together;
  I hope the speeches were short
chat: The band played far too long; An uncle fell asleep on the coats; {They} cried twice;
  Nobody wanted to leave
again: {Who} showed the film of the {thing}; {Who} is still writing thank-you cards for the {thing}
noise: There was a wedding at the town hall, rice everywhere; The neighbours had a noisy party
did: celebrate the {thing}; have the {thing}
fact a barn near {town}; the {adjective} {noun}; a boat; the rowing club; a vineyard; an old mill;
  the fire station
tell: The whole thing was at {value}, with lanterns; {value} turned out to be the perfect setting
ask: Where did you celebrate?; Was there enough room?
reply: At {value}; {value}, plenty of space
q: Where was {whose} {thing}?; At which place did {who} celebrate the {thing}?
para: Which venue was chosen for {whose} big celebration?
fact {number} guests
tell: {value} came, some of them uninvited; They counted {value} at the buffet
ask: A big crowd?; How many came?
reply: {value}; About {value}
q: How many guests came to {whose} {thing}?; How big was {whose} {thing}?
para: How many people attended {whose} celebration?
fact {dish}
tell: They served {value}, from a pot as big as a bath; {value} for everybody, and seconds
ask: And the food?; Did the caterer deliver?
reply: {value}, delicious; There was {value}
q: What was there to eat at {whose} {thing}?; Which dish was served at {whose} {thing}?
para: What was on the menu when {who} celebrated?

topic music
thing: cello; accordion; saxophone; ukulele; bass; harp; clarinet; trombone; banjo; drums; viola
open: {Who} plays the {thing} in a band now, the first rehearsal was {when};
  They needed the {thing}, {who} joined {when}
react: The {thing} is {praise}; Making music with others is {praise}; Practice pays off
chat: The singer comes late every time; They rehearse in a garage; {Their} ears were ringing;
  It sounds rough
again: {Who} practised the {thing} till midnight; Somebody borrowed {whose} {thing}
noise: {Stranger} played the {thing} in the underpass; The radio was on all day
did: join the band; have the first rehearsal with the {thing}
fact the {adjective} {noun}s; {noun} and {noun}; the {town} Five
tell: On the poster they are {value}; {value} was the only name nobody hated
ask: What are they called?; Have I heard of them?
reply: {value}; Hardly, {value}
q: What is the name of {whose} band?; What is the band called in which {who} plays the {thing}?
para: Under which name does {whose} group perform?
update: They fell out and start again as {value}; New line-up, new name: {value}
fact folk; ska; tango; film music; klezmer; swing; hymns; punk; bossa nova; country; baroque; sea shanties
tell: It is {value}, mostly; If you like {value} you would enjoy it
ask: In which direction does it go?; Loud or quiet?
reply: {value}; Rather {value}
q: What kind of music does {whose} band play?; Which style does {whose} band play?
para: Which genre does {whose} group prefer?
fact the {adjective} {noun}; a prison; the town fair in {town}; a retirement home; a ferry;
  a beer garden in {town}
tell: They got booked for {value}, unpaid of course; Next they play at {value}
ask: Any gigs?; Will there be an audience?
reply: Yes, at {value}; {value}, can you imagine
q: Where is the concert of {whose} band?; Where will {whose} band play?
para: Where does {whose} group have its gig?

topic race
thing: half marathon; triathlon; regatta; ski race; cycling tour; marathon; relay; mountain run;
  swimming gala
open: {Who} finished a {thing} {when}; The {thing} was {when}, {who} can hardly walk
react: A {thing} is {praise}; Months of training paid off; Rest is just as important now
chat: The last part was pure willpower; It rained sideways; {They} had blisters everywhere;
  A brass band stood there
again: {Who} hung up the medal of the {thing}; {Who} is training for another {thing}
noise: The streets were closed for a race; {Stranger} runs past every morning at six
did: finish the {thing}; take part in the {thing}
fact {town}
tell: It led twice around {value}; Half of {value} stood along the course
ask: Where was it?; A nice route?
reply: In {value}; {value}, flat as a plate
q: Where was {whose} {thing}?; In which town did {who} take part in the {thing}?
para: Which town hosted the competition that {who} entered?
fact place {number}
tell: {value}, better than anybody thought; It ended with {value}, out of thousands
ask: How did it go?; And the result?
reply: {value}; {value}, not bad
q: Which place did {who} take in the {thing}?; What was {whose} result in the {thing}?
para: How well did {who} do in the competition?
fact a hospice; the lifeboats; a school in {country}; guide dogs; the food bank; refugees;
  the village library
tell: The money went to {value}; People sponsored {whom} for {value}
ask: Was it for charity?; Just for fun?
reply: For {value}; It was for {value}
q: What did {who} collect money for in the {thing}?; Which cause did {who} run the {thing} for?
para: Who benefited from {whose} sponsorship?

topic garden
thing: fig tree; rose; vegetable patch; pond; greenhouse; beehive; apple tree; rockery; compost heap;
  wisteria
open: {Who} has {a thing} now, it was put in {when}; Mud up to the knees {when}, but {who} has {a thing} now
react: {A thing} is {praise}; Gardens need patience; The soil makes all the difference
chat: The slugs are a plague; {They} watered it with a bucket; The hose burst; A blackbird watches everything
again: {Whose} {thing} survived the storm; {Who} spent all day with the {thing}
noise: {Stranger} carried {a thing} down the road, it seemed; The allotments have a waiting list
did: put in the {thing}; get the {thing}
fact {shop}; {her name}'s grandmother; the nursery in {town}; the botanical garden
tell: It was a bargain from {value}; {value} had one left
ask: Where does one get such a thing?; Was it hard to find?
reply: From {value}; {value}, by accident
q: Where did {who} get the {thing}?; Where does {whose} {thing} come from?
para: Who supplied the {thing} for {whose} garden?
fact moles; mildew; a heron; wasps; greenfly; the neighbour's goat; late frost; rats; deer; moss
tell: The only enemy is {value}; {value} nearly finished it in a night
ask: Is it doing well?; Any trouble with it?
reply: {value}; Well, {value}
q: What is the problem with {whose} {thing}?; What damaged {whose} {thing}?
para: What threatens {whose} {thing}?

topic kitchen
thing: bathroom; kitchen; hallway; attic; balcony; cellar; nursery; staircase
open: {Who} had the {thing} done up, the workmen left {when};
  Dust everywhere, but {whose} {thing} is ready, the last tile was laid {when}
react: A fresh {thing} is {praise}; Renovation always takes longer; Good craftsmen are hard to find
chat: The tiles were out of stock; The bill has three pages; They found old newspapers under the floor
again: {Whose} {thing} still smells of paint; A drawer in {whose} {thing} is stuck
noise: {Stranger} asked where the {thing} department is; They drill next door from eight to five
did: finish the {thing}; have the {thing} done up
fact {colour}
tell: The walls are {value}, against all advice; {value} looked better on the tin
ask: Which shade did it become?; Bright or dark?
reply: {value}; {value}, and it suits the light
q: What colour is {whose} {thing}?; Which colour did {who} choose for the {thing}?
para: How did {who} paint the {thing}?
fact {his name} {surname}; {her name} {surname}; {surname} and daughters
tell: {value} did it all, with a radio on; I can recommend {value}, clean and punctual
ask: Whom did you hire?; Are the workmen any good?
reply: {value}; {value}, a treasure
q: Who renovated {whose} {thing}?; Who did the work in {whose} {thing}?
para: Which firm took care of {whose} {thing}?

topic exam
thing: driving; sailing licence; chemistry; Latin; first aid; bar; anatomy; statistics; hunting licence;
  Japanese
open: {Who} passed the {thing} exam {when};
  The {thing} exam is done, it was {when}, {who} could not eat for days
react: Passing the {thing} exam is {praise}; All that studying was worth it; Time to celebrate
chat: The room was ice-cold; One question was about something nobody had heard of; {They} slept for a day
again: {Who} got the certificate for the {thing} exam; {Who} already forgot everything for the {thing} exam
noise: The school next door had exams, all quiet; {Stranger} was learning vocabulary aloud
did: pass the {thing} exam; take the {thing} exam
fact {number} points; top marks; by one point; at the second try; at the third try
tell: In the end it was {value}; {value}, the letter said
ask: And the mark?; Was it close?
reply: {value}; {value}, phew
q: What result did {who} get in the {thing} exam?; How did {who} do in the {thing} exam?
para: What grade did {who} achieve in {thing}?
fact {his name}; {her name}; a {profession}
tell: It was all thanks to {value}, who drilled {whom} on Sundays; {value} helped with the hard parts
ask: Did anybody help?; All by yourself?
reply: With {value}; No, {value} came every week
q: Who helped {whom} with the {thing} exam?; Who did {who} study with for the {thing} exam?
para: Who was {whose} tutor for {thing}?

topic baby
thing: daughter; son; granddaughter; grandson; twins
open: {Who} became a parent {when}, the {thing} arrived;
  It happened {when}: {whose} {thing} came into the world
react: How {praise}, congratulations; I wish you all some sleep; New life in the house
chat: Everybody says it has the chin of the family; Nobody sleeps; The pram does not fit into the lift
again: {Whose} {thing} has a first tooth; {Whose} {thing} laughed for the first time
noise: {Stranger} with a pram blocked the escalator; A baby cried all through the film
did: welcome the {thing}; become a parent
fact {her name}; {his name}
tell: {value} it is, after a great-aunt; On the card it says {value}, with a stork
ask: Which name was chosen?; And what is the little one called?
reply: {value}; {value}, we all like it
q: What is the name of {whose} {thing}?; What is {whose} {thing} called?
para: Which name did {whose} child get?
fact {town}
tell: They nearly did not make it to the clinic in {value}; It was in {value}, in the middle of a heatwave
ask: At home or in hospital?; Did all go well?
reply: In {value}, all fine; {value}, at four in the morning
q: Where was {whose} {thing} born?; In which town was {whose} {thing} born?
para: What is the birthplace of {whose} child?

topic volunteering
thing: food bank; lifeboat station; animal shelter; repair cafe; hospice; youth club; fire brigade;
  library; zoo
open: {Who} helps at the {thing} now, the first time was {when};
  The {thing} needed people, so {who} went there {when}
react: Helping at a {thing} is {praise}; They are surely grateful; Volunteers keep everything going
chat: They drink a lot of tea there; {They} got a bright vest; Somebody always brings cake;
  It is never boring
again: {Who} was at the {thing} till late; They elected somebody new at the {thing}, {who} said
noise: {Stranger} collected signatures for the {thing}; The council wants to save on clubs
did: start helping at the {thing}; go to the {thing} for the first time
fact {weekday} mornings; {weekday} nights; every second {weekday}; {weekday} after work
tell: It is {value}, so no more meetings then; {value} are taken from now on
ask: How often is that?; Does it take much time?
reply: {value}; {value}, that is doable
q: When does {who} help at the {thing}?; At what time is {who} at the {thing}?
para: When is {whose} volunteer shift?
update: They changed the rota, {value} from now on; It became too much, now it is {value}
fact peeling onions; reading aloud; mending zips; the website; driving the van; bottle feeding;
  the tombola; the keys
tell: They let {whom} do {value}; {They} ended up with {value}, as always
ask: And what is there to do?; What are the tasks?
reply: {value}; For now {value}
q: What does {who} do at the {thing}?; What is {whose} task at the {thing}?
para: Which chore did the volunteers give {whom}?
";

/// Questions of the user that the assistant answers from general knowledge. The value is in its answer.
pub(super) const ADVICE: &str = "
topic remedy
thing: limescale in the kettle; a squeaky door; moths in the wardrobe; red wine on linen; a stiff zip;
  hiccups
open: How do I deal with {thing}?; Any idea what helps with {thing}?;
  I am fighting with {thing} again, what works?
chat: Good, that I have at home; I will try it tonight; My grandmother swore by something else
fact vinegar; candle wax; cedar wood; baking soda; cornstarch; cold milk; a pencil; lemon peel;
  clove oil; salt; chalk
tell: I would try {value} first, a little is enough;
  Most people get on well with {value}, left on for an hour
q: What did you suggest for {thing}?; What did you recommend against {thing}?
para: Which household remedy did you come up with for {thing}?

topic reading
thing: a long train ride; a reluctant reader; a rainy week; a book club; somebody who loves ships;
  a history fan
open: I need a book for {thing}; What could one read, for {thing}?; Is there a novel that suits {thing}?
chat: Never heard of it; The library has it; I will order it; The cover looks odd
fact The {adjective} {noun}; A {noun} in {town}; The {noun} of {country}; Letters from {town};
  The Last {noun}
tell: {value} would be my choice, it is short and funny; Many enjoy {value}, the middle part drags a bit
q: Which book did you recommend for {thing}?; What did you suggest to read for {thing}?
para: What was the title of the novel that you named for {thing}?

topic cooking
thing: six hungry children; my vegetarian boss; a tiny oven; leftover bread; a camping stove;
  a first date; Easter
open: What should I cook, {thing} you know?; Dinner idea needed because of {thing};
  I have no plan for {thing}
chat: I have most of it here; Sounds like a lot of washing up; Somebody will complain anyway
fact {dish}
tell: How about {value}, it can be prepared the day before; {value} is forgiving and needs one pot only
q: What did you suggest to cook for {thing}?; Which dish did you propose for {thing}?
para: What meal was your idea for {thing}?

topic gift
thing: my godmother; the new neighbours; a colleague who leaves; the piano teacher; my father-in-law;
  the caretaker
open: I need a present for {thing}; What does one give to {thing}?; The present for {thing} is still missing
chat: That might work; Within budget too; A bit unusual, but why not; I had thought of flowers
fact a lemon tree; a star map; a {colour} blanket; a jigsaw puzzle; a {programme} on disc;
  tickets for the {noun} theatre
tell: Perhaps {value}, with a handwritten card; {value} is personal without being too much
q: What present did you suggest for {thing}?; What did you say I should give to {thing}?
para: Which surprise did you think up for {thing}?

topic outing
thing: Ghent; Porto; Tartu; Graz; Cork; Bilbao; Brno; Turku; Dundee; Nantes; Bergen; Linz; Bath; Como;
  Rouen; Split
open: We have one afternoon in {thing}, what is worth seeing?; What is there to do in {thing} when it pours?
chat: I will put it on the list; The children will moan; Is that open on Mondays, I wonder; Noted
fact the {noun} museum; the view from {street}; the salt cellars; the {adjective} {noun};
  the covered market; the old docks
tell: I would go to {value}, before the crowds come; {value} takes two hours and is free on Sundays
q: What did you recommend to see in {thing}?; Which sight in {thing} did you suggest?
para: Where did you think we should go in {thing}?
";
